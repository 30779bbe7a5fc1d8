// SPDX-License-Identifier: Apache-2.0
// One tab stop for many items, and arrows between them.

/** Move the tab stop of `container` to `item`, and the focus where `focus` is set. */
export function stopAt(container, item, focus = false) {
  for (const other of container.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  item.tabIndex = 0;
  if (focus) {
    item.focus({ preventScroll: true });
    (item.firstElementChild ?? item).scrollIntoView({ block: "nearest" });
  }
}

/** The item to go to from `item` of `items` for a key; undefined for other keys. */
export function goal(key, item, items) {
  const at = items.indexOf(item);
  return {
    ArrowDown: items[Math.min(at + 1, items.length - 1)],
    ArrowUp: items[Math.max(at - 1, 0)],
    Home: items[0],
    End: items[items.length - 1],
  }[key];
}
