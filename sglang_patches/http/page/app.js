// SPDX-License-Identifier: Apache-2.0
// The page: asks the server every two seconds, and shows what it says.

import { find, write } from "./dom.js";
import { startExplain } from "./explain.js";
import { showComparison, showStats } from "./live.js";
import { addPrompts, forgetPrompts, held, startPrompts } from "./prompts.js";
import { ask, setKey } from "./server.js";

const PERIOD_MS = 2000;
const HIDDEN_PERIOD_MS = 20_000; // a page in the background goes on watching, at its ease

let isWatching = true;
let watch = null; // the server's name for this watch
let after = 0;
let hasKeyFailed = false;
let timer = null;

async function update() {
  clearTimeout(timer);
  try {
    const [stats] = await Promise.all([ask("stats"), isWatching ? updateWatch() : null]);
    showStats(stats);
    showProblem("");
  } catch (error) {
    if (error.needsKey) askForKey();
    else showProblem(error.message);
  }
  timer = setTimeout(update, document.hidden ? HIDDEN_PERIOD_MS : PERIOD_MS);
}

async function updateWatch() {
  let told;
  try {
    told = await ask(`ui/watch?after=${after}`, { method: "POST" });
  } catch (error) {
    if (!error.needsKey) throw error;
    askForKey();
    return;
  }
  if (!isWatching) return; // stopped meanwhile
  if (find("key-form").contains(document.activeElement)) find("prompts").focus({ preventScroll: true });
  find("key-form").hidden = true;
  hasKeyFailed = false;
  setState("on", "Watching");
  if (told.watch !== watch) {
    forgetPrompts();
    const isPartial = after > 0;
    [watch, after] = [told.watch, 0];
    if (isPartial) return await updateWatch();
  }
  after = told.number;
  addPrompts(told.prompts, told.max_prompts);
  showComparison(told, held());
}

function setState(state, text) {
  write("watch-state", text);
  find("watch-state").dataset.state = state;
  write("watch-button", isWatching ? "Stop and forget" : "Watch");
}

function askForKey() {
  setState("off", "Needs a key");
  if (find("key-form").hidden) {
    find("key-form").hidden = false;
    find("key").focus();
  }
  if (hasKeyFailed) write("key-error", "The server does not take this key.");
}

function showProblem(message) {
  write("problem", message);
  find("problem").hidden = !message;
  if (message) setState("off", "No connection");
}

async function toggleWatch() {
  isWatching = !isWatching;
  forgetPrompts();
  [watch, after] = [null, 0];
  setState("off", isWatching ? "Connecting" : "Not watching");
  if (!isWatching) {
    await ask("ui/forget", { method: "POST" }).catch((error) => showProblem(error.message));
  }
  await update();
}

async function showServer() {
  const status = await ask("status").catch(() => null);
  const models = await ask("../v1/models").catch(() => null);
  const name = models?.data?.[0]?.id?.split("/").findLast((part) => part && part !== "model");
  write("model", name ?? "");
  if (status) write("version", `DepCache ${status.version}, SGLang ${status.sglang_version}`);
}

find("watch-button").addEventListener("click", toggleWatch);
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("key").value);
  find("key").value = "";
  hasKeyFailed = true; // until the server takes it
  write("key-error", "");
  update();
  showServer();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) update();
});

startPrompts();
startExplain();
showServer();
update();
