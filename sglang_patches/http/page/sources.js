// SPDX-License-Identifier: Apache-2.0
// The four places that the KV of a context token comes from: their words, marks and bars.

import { count, make, percent } from "./dom.js";

/** In the order of bars; each has a colour, a mark and a pattern of its own in theme.css. */
export const SOURCES = [
  ["shared", "●", "used in place"],
  ["shifted", "→", "moved, then used"],
  ["loaded", "↑", "from a lower tier"],
  ["missed", "○", "computed"],
];

export const contextOf = (told) => SOURCES.reduce((sum, [name]) => sum + (told[name] ?? 0), 0);

export const reusedOf = (told) => contextOf(told) - (told.missed ?? 0);

/** Fill `bar` with stripes as wide as the sources of `told` are many. */
export function fillBar(bar, told) {
  const all = contextOf(told);
  const parts = SOURCES.filter(([name]) => told[name] > 0).map(([name]) => [name, told[name]]);
  const stripes = parts.map(([name, number]) => {
    const stripe = make("span", { class: `stripe ${name}` });
    stripe.style.flexGrow = number;
    return stripe;
  });
  bar.replaceChildren(...stripes);
  bar.setAttribute("role", "img");
  const words = parts.map(([name, number]) => `${name} ${percent(number, all)}`).join(", ");
  bar.setAttribute("aria-label", words || "nothing yet");
  return bar;
}

/** Badges with the word and the number of each source that is there. */
export function badges(told) {
  return SOURCES.filter(([name]) => told[name] > 0).map(([name, mark, meaning]) =>
    make(
      "span",
      { class: `badge ${name}`, title: `${count(told[name])} tokens ${meaning}` },
      make("span", { "aria-hidden": "true" }, `${mark} `),
      `${name} ${count(told[name])}`,
    ),
  );
}

/** The source that most of a segment's tokens have. */
export function mainSource(told) {
  return SOURCES.map(([name]) => name).reduce((best, name) =>
    (told[name] ?? 0) > (told[best] ?? 0) ? name : best,
  );
}

/** A legend with numbers, in a <dl>. */
export function fillLegend(list, told) {
  const all = contextOf(told);
  list.replaceChildren(
    ...SOURCES.map(([name, mark, meaning]) =>
      make(
        "div",
        { class: name },
        make(
          "dt",
          null,
          make("span", { class: `swatch ${name}`, "aria-hidden": "true" }),
          make("strong", { class: "word" }, make("span", { "aria-hidden": "true" }, `${mark} `), name),
          make("span", { class: "quiet" }, ` ${meaning}`),
        ),
        make("dd", null, count(told[name]), " ", make("span", { class: "quiet" }, percent(told[name], all))),
      ),
    ),
  );
}
