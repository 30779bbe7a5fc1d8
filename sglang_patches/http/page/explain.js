// SPDX-License-Identifier: Apache-2.0
// A prompt that somebody pastes: how it is cut, and what of it is cached now.

import { count, find, make, plural } from "./dom.js";
import { ask } from "./server.js";
import { contextOf, fillBar, fillLegend, reusedOf } from "./sources.js";
import { makeTree } from "./tree.js";

// As `depcache.render` writes it, so that what a client asked is found again.
export const SYSTEM =
  "You answer questions with the facts you are given. Each fact is one line, a path through a " +
  "knowledge graph: entity -> relation -> entity. If the facts do not hold the answer, say so.";

const EXAMPLE = [
  "Marie Curie -> born in -> Warsaw -> located in -> Poland",
  "Marie Curie -> born in -> Warsaw -> on -> Vistula",
  "Marie Curie -> won -> Nobel Prize in Physics",
  "Danube -> flows into -> Black Sea",
].join("\n");

/** The body of a chat about facts, one path a line; as `depcache.render` makes it. */
export function makeBody(facts, question, system, layout) {
  const paths = facts
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => line.split("->").map((element) => element.trim()));
  const lines = [...new Map(paths.map((path) => [JSON.stringify(path), path])).values()];
  const flat = lines.map((path) => `\n${path.join(" -> ")}`).join("");
  const messages = system ? [{ role: "system", content: system }] : [];
  messages.push({ role: "user", content: `Facts:${flat}\n\nQuestion: ${question}` });
  return {
    messages,
    custom_params: {
      depcache_version: 1,
      depcache_layout: layout,
      depcache_template: "path",
      depcache_paths: JSON.stringify(lines),
    },
  };
}

export function startExplain() {
  const form = find("try-form");
  find("system").value = SYSTEM;
  form.addEventListener("change", () => {
    const isJson = form.elements.form.value === "json";
    find("facts-fields").hidden = isJson;
    find("json-fields").hidden = !isJson;
  });
  find("example").addEventListener("click", () => {
    if (form.elements.form.value === "json") {
      const body = makeBody(EXAMPLE, "Where was Marie Curie born?", SYSTEM, "tree");
      find("body").value = JSON.stringify(body, null, 2);
    } else {
      find("facts").value = EXAMPLE;
      find("question").value = "Where was Marie Curie born?";
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    look(form);
  });
}

async function look(form) {
  const isJson = form.elements.form.value === "json";
  const body = isJson
    ? find("body").value
    : JSON.stringify(
        makeBody(find("facts").value, find("question").value, find("system").value, find("layout").value),
      );
  find("try-error").textContent = "";
  try {
    show(await ask("explain", { method: "POST", body }));
  } catch (error) {
    find("try-result").replaceChildren();
    find("try-error").textContent = error.message;
  }
}

function show(told) {
  const all = contextOf(told);
  const later = told.on_disk ? ` ${count(told.on_disk)} of the missed could come from disk.` : "";
  find("try-result").replaceChildren(
    make(
      "p",
      null,
      make("strong", null, `${count(reusedOf(told))} of ${plural(all, "context token")} cached now.`),
      ` ${plural(told.missed + told.plain - told.tail, "token")} would be computed, the end of the task among them.${later}`,
    ),
    fillBar(make("div", { class: "bar tall" }), told),
    legend(told),
    ...unread(told.unread_facts ?? []),
    makeTree(told, "The prompt, cut into trees"),
  );
}

function legend(told) {
  const list = make("dl", { class: "legend" });
  fillLegend(list, told);
  return list;
}

/** Lines outside the trees that look like facts: what nobody reads costs its tokens each time. */
function unread(found) {
  if (!found.length) return [];
  return [
    make(
      "div",
      { class: "notice unread" },
      make("p", null, make("strong", null, "These lines look like facts, and are read as plain text:")),
      make(
        "ul",
        null,
        ...found.map((each) =>
          make(
            "li",
            null,
            `${plural(each.count, "line")} like `,
            make("code", null, each.spelling),
            ", for example ",
            make("code", null, each.example),
          ),
        ),
      ),
    ),
  ];
}
