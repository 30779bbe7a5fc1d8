// SPDX-License-Identifier: Apache-2.0
// The last prompts: a list, the newest first, and the trees of the chosen one.

import { count, find, make, milliseconds, percent, plural, write } from "./dom.js";
import { goal, stopAt } from "./roving.js";
import { contextOf, fillBar, reusedOf } from "./sources.js";
import { makeTree, words } from "./tree.js";

let prompts = []; // the newest first
let chosen = null; // a number; null follows the newest
let shown = null;

export const held = () => prompts;

export function forgetPrompts() {
  prompts = [];
  chosen = shown = null;
  draw();
}

/** New prompts of the server, which keeps `max` of them. */
export function addPrompts(fresh, max) {
  if (!fresh.length) return;
  prompts = [...fresh.reverse(), ...prompts].slice(0, max);
  if (!prompts.some((prompt) => prompt.number === chosen)) chosen = null;
  draw();
}

function draw() {
  find("no-prompts").hidden = prompts.length > 0;
  find("prompts-split").hidden = !prompts.length;
  write("prompts-note", prompts.length ? `${plural(prompts.length, "prompt")}, the newest first` : "");
  const list = find("prompt-list");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.number : null;
  const current = chosen ?? prompts[0]?.number;
  list.replaceChildren(...prompts.map((prompt) => option(prompt, prompt.number === current)));
  if (focused !== null) list.querySelector(`[data-number="${focused}"]`)?.focus({ preventScroll: true });
  showDetail(prompts.find((prompt) => prompt.number === current));
}

function option(prompt, isChosen) {
  return make(
    "div",
    {
      role: "option",
      class: "option",
      tabindex: isChosen ? "0" : "-1",
      "aria-selected": String(isChosen),
      "data-number": prompt.number,
    },
    make("p", { class: "question" }, question(prompt)),
    fillBar(make("div", { class: "bar" }), prompt),
    make(
      "p",
      { class: "quiet" },
      `${percent(reusedOf(prompt), contextOf(prompt))} reused` +
        (prompt.ttft_ms === null ? "" : ` · ${milliseconds(prompt.ttft_ms)}`),
    ),
  );
}

/** What the task says, without the words around it that every prompt has. */
function question(prompt) {
  return words(prompt.task.text).replace(/^Question: /, "").slice(0, 300);
}

function showDetail(prompt) {
  const detail = find("prompt-detail");
  if (!prompt) {
    shown = null;
    detail.replaceChildren();
    return;
  }
  if (shown === prompt.number) return; // keep what is open in the tree, and the focus
  shown = prompt.number;
  detail.replaceChildren(
    make("h3", null, question(prompt)),
    make("p", { class: "facts" }, ...summary(prompt)),
    makeTree(prompt, `Prompt: ${question(prompt)}`),
  );
}

function summary(prompt) {
  const parts = [
    `${count(prompt.missed + prompt.plain - prompt.tail)} of ${plural(prompt.prompt_tokens, "token")} computed`,
    prompt.compared && `a plain prefix cache: ${count(prompt.compared.plain_computed)} of ${count(prompt.compared.flat_tokens)} (estimated)`,
    prompt.ttft_ms !== null && `first token after ${milliseconds(prompt.ttft_ms)}`,
    `layout ${prompt.layout}`,
    new Date(1000 * prompt.at_s).toLocaleTimeString("en-GB"),
    prompt.fallback_reason,
  ];
  return parts.filter(Boolean).map((part) => make("span", null, part));
}

export function startPrompts() {
  const list = find("prompt-list");
  list.addEventListener("click", (event) => choose(event.target.closest('[role="option"]')));
  list.addEventListener("keydown", (event) => {
    const to = goal(event.key, event.target.closest('[role="option"]'), [...list.children]);
    if (!to) return;
    event.preventDefault();
    choose(to);
  });
}

function choose(item) {
  if (!item) return;
  const number = Number(item.dataset.number);
  chosen = number === prompts[0].number ? null : number;
  for (const other of find("prompt-list").children) other.setAttribute("aria-selected", String(other === item));
  stopAt(find("prompt-list"), item, true);
  showDetail(prompts.find((prompt) => prompt.number === number));
}
