// SPDX-License-Identifier: Apache-2.0
// Elements and numbers. Text goes in as text: facts come from anyone.

export const find = (id) => document.getElementById(id);

/** An element; `attributes` may be null, and children are nodes or strings. */
export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set a text, only where it changes: a screen reader speaks of changes. */
export function write(id, text) {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export const count = (number) => whole.format(number);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A share as a percentage that is 100 or 0 only where it is all or nothing. */
export function percent(part, all) {
  if (!all) return "–";
  const share = (100 * part) / all;
  if (part < all && share > 99) return "99 %";
  if (part > 0 && share < 1) return "< 1 %";
  return `${whole.format(share)} %`;
}

export function times(ratio) {
  return `${ratio < 10 ? tenths.format(ratio) : whole.format(ratio)}×`;
}

export function milliseconds(ms) {
  if (ms >= 10_000) return `${tenths.format(ms / 1000)} s`;
  return `${ms < 10 ? tenths.format(ms) : whole.format(ms)} ms`;
}

export function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (number >= 1000 && at < units.length - 1) {
    number /= 1000;
    at += 1;
  }
  return `${at && number < 10 ? tenths.format(number) : whole.format(number)} ${units[at]}`;
}

export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
