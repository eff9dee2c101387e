// @ts-check
// The labels beside and above a heat map.

import { element } from "qkv/elements.js";
import { label } from "qkv/token_text.js";
/** @import { HeatMap } from "qkv/heat_map.js" */

const LABEL = 15; // pixels a label needs at least

/**
 * Shows the visible labels: as many as have room, and always that of the hovered cell.
 * @param {HeatMap} map
 */
export function drawLabels(map) {
  const { cell, x, y } = map.viewport;
  const within = (at, length) => (cell < LABEL ? Math.min(length - LABEL / 2, Math.max(LABEL / 2, at)) : at);
  const put = (parent, names, every, hovered, offset, length, move) => {
    let shown = [];
    for (let index = every[0]; index <= every.at(-1); index += every.stride) {
      if (hovered === null || index === hovered || Math.abs(index - hovered) * cell >= LABEL) shown.push(index);
    }
    if (hovered !== null && !shown.includes(hovered)) shown.push(hovered);
    const at = (index) => within((index + 0.5) * cell - offset * cell, length);
    const crowded = (index, number) =>
      number > 0 && index !== hovered && at(index) - at(shown[number - 1]) < LABEL - 3;
    if (cell < LABEL) shown = shown.filter((index, number) => !crowded(index, number));
    while (parent.children.length < shown.length) parent.append(element("span"));
    while (parent.children.length > shown.length) parent.lastChild.remove();
    shown.forEach((index, number) => {
      const node = parent.children[number];
      if (node.text !== names.texts[index]) {
        node.text = names.texts[index];
        node.replaceChildren(label(node.text));
      }
      node.classList.toggle("hovered", index === hovered);
      node.classList.toggle("left", parent === map.columnLabels && map.left.has(index));
      move(node, at(index));
    });
  };
  const stride = Math.max(1, Math.ceil(LABEL / cell));
  const strided = (range) => Object.assign([Math.ceil(range[0] / stride) * stride, range.at(-1)], { stride });
  const rows = strided(map.viewport.visibleRows());
  const columns = strided(map.viewport.visibleColumns());
  put(map.rowLabels, map.rows, rows, map.hovered?.row ?? null, y, map.viewport.height, (node, at) => {
    node.style.transform = `translateY(${at}px) translateY(-50%)`;
  });
  const widest = map.flat ? `${cell}px` : "";
  put(map.columnLabels, map.columns, columns, map.hovered?.column ?? null, x, map.viewport.width, (node, at) => {
    node.style.maxWidth = widest;
    node.style.transform = map.flat
      ? `translateX(${at}px) translateX(-50%)`
      : `translateX(${at}px) translateX(-50%) rotate(180deg)`;
  });
}
