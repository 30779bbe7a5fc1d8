// SPDX-License-Identifier: Apache-2.0
// A prompt as a tree of its segments, coloured by where their KV comes from; usable by keys alone.

import { count, make, plural } from "./dom.js";
import { goal, stopAt } from "./roving.js";
import { badges, mainSource } from "./sources.js";

const MANY = 150; // of more segments only the trees' roots are open at first

/** `told` is what /depcache/explain and /depcache/ui/watch say of a prompt. */
export function makeTree(told, label) {
  const children = new Map();
  for (const row of told.table) {
    if (!children.has(row.parent)) children.set(row.parent, []);
    children.get(row.parent).push(row);
  }
  const isOpen = told.table.length <= MANY;
  const tree = make("ul", { class: "tree", role: "tree", "aria-label": label });
  const system = { ...told.system, segment: -1, text: told.system.text.trim() || "(no system)" };
  tree.append(item(system, children, 1, true, isOpen, "system"), taskItem(told.task, told.tail ?? 0));
  tree.querySelector('[role="treeitem"]').tabIndex = 0;
  tree.addEventListener("keydown", onKey);
  tree.addEventListener("click", onClick);
  return make("div", { class: "tree-box" }, toolbar(tree, told), tree);
}

function item(row, children, level, isOpen, opensBelow, kind) {
  const below = children.get(row.segment) ?? [];
  const node = make("li", {
    role: "treeitem",
    tabindex: "-1",
    "aria-level": level,
    "aria-expanded": below.length ? String(isOpen) : null,
    class: kind,
  });
  node.append(
    make(
      "div",
      { class: `row ${row.num_tokens ? mainSource(row) : ""}`, title: row.text },
      make("span", { class: "twist", "aria-hidden": "true" }),
      kind ? make("span", { class: "kind" }, kind) : null,
      make("span", { class: "words" }, words(row.text)),
      make("span", { class: "badges" }, ...badges(row)),
    ),
  );
  if (below.length) {
    const group = make("ul", { role: "group" });
    for (const child of below) {
      group.append(item(child, children, level + 1, opensBelow, opensBelow));
    }
    node.append(group);
  }
  return node;
}

function taskItem(task, numCached) {
  const cached = { class: "badge shared", title: "of a conversation or an agent's prompt before" };
  return make(
    "li",
    { role: "treeitem", tabindex: "-1", "aria-level": 1, class: "task" },
    make(
      "div",
      { class: "row", title: task.text },
      make("span", { class: "twist", "aria-hidden": "true" }),
      make("span", { class: "kind" }, "task"),
      make("span", { class: "words" }, words(task.text)),
      make(
        "span",
        { class: "badges" },
        numCached ? make("span", cached, `cached ${count(numCached)}`) : null,
        make("span", { class: "badge plain" }, `computed ${count(task.num_tokens - numCached)}`),
      ),
    ),
  );
}

/** The words without the marks of a chat template; the title of the row has all of them. */
export function words(text) {
  const marks = /<\|[^|<>]*\|>|<\/?s>|<(?:start|end)_of_turn>/g;
  const plain = text.replaceAll(marks, " ").replaceAll(" -> ", " → ");
  return plain.replaceAll(/\s+/g, " ").trim() || "␣";
}

function toolbar(tree, told) {
  const bar = make("p", { class: "toolbar" });
  bar.append(
    make(
      "span",
      { class: "quiet" },
      `${plural(told.trees, "tree")}, ${plural(told.segments, "segment")}` +
        (told.table_is_cut ? `, the first ${count(told.table.length)} shown` : ""),
    ),
  );
  for (const [text, isOpen] of [["Expand all", true], ["Collapse all", false]]) {
    const button = make("button", { type: "button", class: "small" }, text);
    button.addEventListener("click", () => {
      for (const node of tree.querySelectorAll("[aria-expanded]")) {
        setOpen(node, isOpen || node.classList.contains("system"));
      }
      stopAt(tree, tree.firstElementChild);
    });
    bar.append(button);
  }
  return bar;
}

const isOpen = (node) => node.getAttribute("aria-expanded") === "true";

function setOpen(node, open) {
  if (node.hasAttribute("aria-expanded")) node.setAttribute("aria-expanded", String(open));
}

const shown = (tree) =>
  [...tree.querySelectorAll('[role="treeitem"]')].filter((node) => node.firstElementChild.offsetParent !== null);

function onClick(event) {
  const node = event.target.closest('[role="treeitem"]');
  if (!node) return;
  stopAt(event.currentTarget, node, true);
  setOpen(node, !isOpen(node));
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const tree = event.currentTarget;
  const node = event.target.closest('[role="treeitem"]');
  if (!node) return;
  let to = goal(event.key, node, shown(tree));
  if (event.key === "ArrowRight") {
    if (node.hasAttribute("aria-expanded") && !isOpen(node)) setOpen(node, true);
    else to = node.querySelector('[role="treeitem"]');
  } else if (event.key === "ArrowLeft") {
    if (isOpen(node)) setOpen(node, false);
    else to = node.parentElement.closest('[role="treeitem"]');
  } else if (event.key === "Enter" || event.key === " ") {
    setOpen(node, !isOpen(node));
  } else if (!to) {
    return;
  }
  event.preventDefault();
  if (to) stopAt(tree, to, true);
}
