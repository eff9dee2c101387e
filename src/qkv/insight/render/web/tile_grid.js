// @ts-check
// The tiles of all heads as a grid of buttons: built once, then sized, sorted and placed.

import { element } from "qkv/elements.js";
import { GAP, tileLayout } from "qkv/tile_layout.js";

const MOST_BLOCKS = 4;
const CAPTION = 13; // pixels of a name, and of the number of a sorted head
const NUMBER = 1.4; // width of a number by its height

export class TileGrid {
  /** @type {number} */
  heads;
  /** @type {number} */
  depth;

  /** `events(layer, head)` are the listeners of a tile. */
  constructor({ depth, heads }, events) {
    Object.assign(this, { depth, heads, sequence: [], sorted: false, across: 1 });
    const header = (text, role) => element("span", { class: "axis", role }, text);
    this.headers = Array.from({ length: MOST_BLOCKS }, (_, block) => {
      const role = block ? null : "columnheader";
      const corner = element("span", { class: "corner", role }, element("span", { class: "unseen" }, "layer"));
      return [corner, ...Array.from({ length: heads }, (_, head) => header(head, role))];
    });
    this.names = Array.from({ length: depth }, (_, layer) => header(layer, "rowheader"));
    this.cells = [];
    const lines = this.names.map((name, layer) => {
      const cells = Array.from({ length: heads }, (_, head) => tile(layer, head, events(layer, head)));
      this.cells.push(...cells);
      return element("div", { role: "row", class: "contents" }, name, ...cells);
    });
    const top = element("div", { role: "row", class: "contents" }, ...this.headers[0]);
    // the same numbers above further columns
    const further = element("div", { class: "contents", "aria-hidden": "true" }, ...this.headers.slice(1).flat());
    this.element = element("div", { class: "grid", role: "grid", "aria-label": "Heads by layer" }, top, ...lines, further);
  }

  at(layer, head) {
    return this.cells[layer * this.heads + head];
  }

  each(use) {
    this.cells.forEach((cell, number) => use(cell, Math.floor(number / this.heads), number % this.heads));
  }

  /** Sets the order. Heads of another name are pale, or hidden where the order is not that of layers. */
  sort(sequence, sorted, only) {
    const shown = (cell) => only === null || cell.dataset.name === only;
    this.sorted = sorted;
    this.sequence = sequence.filter(([layer, head]) => !sorted || shown(this.at(layer, head)));
    this.element.classList.toggle("sorted", sorted);
    for (const cell of this.cells) {
      cell.classList.toggle("other", !sorted && !shown(cell));
      cell.hidden = sorted && !shown(cell);
    }
  }

  /** Sizes the tiles, so that all are on one screen if this is possible. */
  arrange({ width, height, ratio, named }) {
    const { depth, heads, element: table } = this;
    const wide = table.classList.contains("numbers") ? NUMBER : ratio;
    const caption = named ? CAPTION : 0;
    const captions = this.sorted ? 2 * CAPTION : caption; // sorted heads have their number, too
    const { blocks, deep, size } = tileLayout({ layers: depth, heads, width, height, ratio: wide, caption });
    const column = `${Math.floor(size * wide)}px`;
    this.across = Math.max(1, Math.floor(width / (Math.floor(size * wide) + GAP)));
    table.style.setProperty("--tile", `${size}px`);
    table.style.setProperty("--caption", `${captions}px`);
    table.style.gridTemplateColumns = this.sorted
      ? `repeat(${this.across}, ${column})`
      : `repeat(${blocks}, 22px repeat(${heads}, ${column}))`;
    this.place(blocks, deep);
  }

  place(blocks, deep) {
    const { heads, sorted } = this;
    const put = (node, row, column) => {
      node.style.gridRow = row;
      node.style.gridColumn = column;
    };
    const begin = (layer) => Math.floor(layer / deep) * (heads + 1) + 1;
    this.headers.forEach((header, block) =>
      header.forEach((node, number) => {
        node.hidden = sorted || block >= blocks;
        put(node, 1, block * (heads + 1) + number + 1);
      }),
    );
    this.names.forEach((name, layer) => {
      name.hidden = sorted;
      put(name, (layer % deep) + 2, begin(layer));
    });
    if (!sorted) this.each((cell, layer, head) => put(cell, (layer % deep) + 2, begin(layer) + head + 1));
    else {
      this.sequence.forEach(([layer, head], number) =>
        put(this.at(layer, head), Math.floor(number / this.across) + 1, (number % this.across) + 1),
      );
    }
  }

  /** The head that an arrow key leads to among sorted tiles, or null. */
  next(key, layer, head) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.across, ArrowDown: this.across };
    const from = this.sequence.findIndex(([a, b]) => a === layer && b === head);
    return this.sequence[from < 0 ? 0 : from + steps[key]] ?? null;
  }

  /** Marks the chosen head, which the Tab key reaches. */
  choose(layer, head) {
    for (const cell of this.cells) {
      cell.removeAttribute("aria-current");
      cell.tabIndex = -1;
    }
    const cell = this.at(layer, head);
    cell.setAttribute("aria-current", "true");
    const reached = cell.hidden && this.sequence.length ? this.at(...this.sequence[0]) : cell;
    reached.tabIndex = 0;
    return cell;
  }
}

function tile(layer, head, events) {
  const attributes = { type: "button", class: "cell", role: "gridcell", tabindex: -1, "data-at": `${layer}.${head}` };
  const canvas = element("canvas", { "aria-hidden": "true" });
  return element("button", { ...attributes, ...events }, canvas, element("span", { class: "tag", "aria-hidden": "true" }));
}
