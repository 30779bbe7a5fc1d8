// SPDX-License-Identifier: Apache-2.0
// Questions to the server that the page came from. The key lives in this tab alone.

const KEY = "depcache-key";

export const getKey = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What went wrong, in the server's own sentence; `status` is 0 where it did not answer. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get needsKey() {
    return this.status === 401;
  }
}

export async function ask(path, { method = "GET", body } = {}) {
  const headers = {};
  // A header is Latin-1; another character would be an error of the browser's.
  const key = getKey().replace(/[^\x20-\x7e\xa0-\xff]/g, "?");
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body, cache: "no-store" });
  } catch {
    throw new ServerError(0, "The server does not answer.");
  }
  const told = await response.json().catch(() => null);
  if (!response.ok) throw new ServerError(response.status, sentence(told, response));
  return told;
}

function sentence(told, response) {
  const found = told?.message ?? told?.error?.message ?? told?.error ?? told?.detail;
  return typeof found === "string" ? found : `The server answered ${response.status}.`;
}
