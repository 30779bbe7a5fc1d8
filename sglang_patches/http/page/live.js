// SPDX-License-Identifier: Apache-2.0
// The figures on top: what the server has measured since it started, and the comparison.

import { bytes, count, find, make, median, milliseconds, percent, plural, times, write } from "./dom.js";
import { contextOf, fillBar, fillLegend, reusedOf } from "./sources.js";

export function showStats(stats) {
  const { tokens, requests } = stats;
  const all = contextOf(tokens);
  write("hit-share", percent(reusedOf(tokens), all));
  write(
    "hit-share-note",
    all ? `${count(reusedOf(tokens))} of ${count(all)}, since the start` : "No prompt with facts yet",
  );
  write("requests", count(requests.requests));
  write(
    "requests-note",
    `with facts · ${count(requests.plain_requests)} plain · ${count(requests.rejected_requests)} refused`,
  );
  fillBar(find("sources-bar"), tokens);
  fillLegend(find("sources"), tokens);
  find("tiers").replaceChildren(...Object.entries(stats.tiers).map(tier));
}

const MEANINGS = { device: "used in place", host: "main memory", disk: "files" };

function tier([name, held]) {
  const share = held.capacity_bytes ? held.bytes / held.capacity_bytes : 0;
  const fill = make("span", { class: "stripe held" });
  fill.style.width = `${100 * share}%`;
  const off = held.is_off ? ", turned off after errors" : "";
  return make(
    "div",
    { class: "tier" },
    make(
      "p",
      null,
      make("strong", null, name),
      make("span", { class: "quiet" }, ` ${MEANINGS[name] ?? ""}${off}`),
      make("span", { class: "number" }, `${bytes(held.bytes)} of ${bytes(held.capacity_bytes)}`),
    ),
    make("div", { class: "bar", role: "img", "aria-label": `${percent(held.bytes, held.capacity_bytes)} full` }, fill),
    make(
      "p",
      { class: "quiet" },
      `${plural(held.tokens, "token")} · ${count(held.hits)} hit · ` +
        `${count(held.evicted)} evicted`,
    ),
  );
}

/** `told` is the answer of /depcache/ui/watch, `prompts` those that the page has. */
export function showComparison(told, prompts) {
  const { prompts: num, computed, plain_computed: plain, flat_tokens: flat, tree_tokens: tree } = told.compared;
  const latencies = prompts.map((prompt) => prompt.ttft_ms).filter((ms) => ms !== null);
  write("ttft", latencies.length ? milliseconds(median(latencies)) : "–");
  write("ttft-note", latencies.length ? `median of the last ${plural(latencies.length, "prompt")}` : "Watching for prompts");
  write("gain", computed ? times(plain / computed) : "–");
  const most = Math.max(plain, computed, 1);
  find("beside").replaceChildren(
    measure("Plain prefix cache", "estimated", plain, most, flat),
    measure("DepCache", "counted", computed, most, tree),
  );
  const skipped = told.skipped ? ` ${plural(told.skipped, "prompt")} could not be compared.` : "";
  write(
    "beside-note",
    num
      ? `Tokens of ${plural(num, "prompt")} since this page watches. Both caches began empty then.${skipped}`
      : `It begins with the next prompt.${skipped}`,
  );
}

function measure(name, kind, number, most, all) {
  const fill = make("span", { class: `stripe ${kind}` });
  fill.style.width = `${(100 * number) / most}%`;
  return make(
    "div",
    { class: "measure" },
    make(
      "p",
      null,
      make("strong", null, name),
      " ",
      make("span", { class: `tag ${kind}` }, kind),
      make("span", { class: "number" }, count(number), make("span", { class: "quiet" }, ` of ${count(all)}`)),
    ),
    make("div", { class: "bar", "aria-hidden": "true" }, fill),
  );
}
