// @ts-check
// The heat map of one matrix: only the visible part is drawn, at its size on the screen.

import { element, oncePerFrame } from "qkv/elements.js";
import { HeatSums } from "qkv/heat_sums.js";
import { drawLabels } from "qkv/heat_labels.js";
import { drawForbidden, drawLeftOut } from "qkv/hatching.js";
import { onResize } from "qkv/on_resize.js";
import { visible } from "qkv/token_text.js";
import { Viewport } from "qkv/viewport.js";
import { zoomButtons } from "qkv/zoom_buttons.js";
/** @import { Colours } from "qkv/colour.js" */
/** @import { Matrix } from "qkv/matrix.js" */
/** @import { Names } from "qkv/token_text.js" */

const LARGEST = 78; // pixels of a cell, at most
const NUMBERED = 34; // cells of this size and more have numbers
const READABLE = 22; // pixels of a cell, at least, of a short text: a map that has no room scrolls
const SHORT = 32; // tokens of a short text
const CORNER = [80, 30]; // pixels of the buttons between the labels
const LEAST = 0.005; // smaller weights have no number

export class HeatMap {
  /** @type {Names} */
  rows;
  /** @type {Names} */
  columns;
  /** @type {Matrix} */
  matrix;
  /** @type {CanvasRenderingContext2D} */
  pen;
  /** @type {boolean} */
  causal;
  /** @type {Colours} */
  colours;
  /** @type {any} */
  left;

  /** Calls `onhover({row, column})`, with null when the pointer leaves, and `onpick(row)`. */
  constructor({ name, onhover = (cell) => {}, onpick = (row) => {}, room = () => this.element.clientWidth }) {
    this.onhover = onhover;
    this.sums = new HeatSums();
    this.room = room; // the available width
    this.canvas = element("canvas", {
      class: "cells",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": name,
    });
    this.rowLabels = element("div", { class: "row-labels" });
    this.columnLabels = element("div", { class: "column-labels" });
    this.band = element("div", { class: "band" });
    this.pin = element("div", { class: "pin" });
    this.spot = element("div", { class: "spot" });
    this.plot = element("div", { class: "plot" }, this.canvas, this.pin, this.band, this.spot);
    this.grid = element("div", { class: "heat" }, this.columnLabels, this.rowLabels, this.plot);
    this.grid.append(...this.sums.parts);
    this.element = element("div", { class: "heat-scroller" }, this.grid);
    this.hovered = null;
    this.pinned = null;
    this.draw = oncePerFrame(() => this.paint());
    this.viewport = new Viewport(this.canvas, {
      moved: this.draw,
      hover: (cell) => this.hover(cell && this.strongest(cell)),
      pick: ({ row }) => onpick(row),
    });
    this.grid.append(zoomButtons(this.viewport));
    onResize(this.element, () => this.arrange());
  }

  /** Shows a matrix with its labels. With the same labels as before, offset and zoom are kept. `left` are columns that
   * are left out; `sums` adds the sums of rows and columns. */
  show(matrix, rows, columns, colours, { pinned = null, causal = false, left = new Set(), sums = false } = {}) {
    const same = this.rows?.texts === rows.texts && this.columns?.texts === columns.texts;
    Object.assign(this, { matrix, rows, columns, colours, pinned, causal, left });
    this.sums.show(sums ? matrix : null, columns);
    if (!same) {
      this.hover(null);
      this.viewport.set(rows.count, columns.count);
      this.measure();
    }
    this.arrange(!same);
    this.paint();
  }

  /** The widths of the longest labels. */
  measure() {
    const pen = element("canvas").getContext("2d");
    pen.font = `13px ${getComputedStyle(this.element).fontFamily}`;
    const widest = (names) =>
      names.texts.reduce((most, text) => Math.max(most, pen.measureText(visible(text.slice(0, 40))).width), 0);
    this.widths = [widest(this.rows), widest(this.columns)];
  }

  arrange(fit = false) {
    const width = this.room();
    if (!this.matrix || !(width > 0)) return; // it is not visible
    const room = roomFor(this.element);
    const [beside, below] = this.sums.size;
    const readable = (count) => (count <= SHORT ? count * READABLE : 0);
    let [left, above] = [0, 0];
    const least = Math.round((13 / 15) * parseFloat(getComputedStyle(document.documentElement).fontSize)); // 13 of 15px
    for (let size = least; ; size = this.size) {
      // larger cells have larger labels, which leave less room for the cells
      left = Math.max(CORNER[0], Math.min(Math.ceil((this.widths[0] * size) / 13) + 14, width * 0.3, 170));
      above = Math.max(CORNER[1], Math.min(Math.ceil((this.widths[1] * size) / 13) + 14, 130));
      const wide = Math.max(width - left - 2 - beside, readable(this.columns.count));
      const high = Math.max(room - above - below, readable(this.rows.count));
      this.viewport.resize(wide, high, LARGEST, fit);
      this.size = Math.max(least, Math.min(18, Math.round(this.viewport.least * 0.24)));
      if (this.size <= size) break;
    }
    // labels that fit above a cell are not turned
    this.flat = (this.widths[1] * this.size) / 13 + 8 <= this.viewport.least;
    if (this.flat) above = Math.max(CORNER[1], 2 * this.size);
    this.grid.style.fontSize = `${this.size}px`;
    this.grid.style.gridTemplateColumns = `${left}px ${this.viewport.width}px ${beside}px`;
    this.grid.style.gridTemplateRows = `${above}px ${this.viewport.height}px ${below}px`;
    this.grid.classList.toggle("flat", this.flat);
    this.draw();
  }

  /** Of the cells under one pixel, the one with the largest weight. */
  strongest(start) {
    const reach = Math.ceil(1 / this.viewport.cell);
    let best = start;
    for (let row = start.row; row < Math.min(this.rows.count, start.row + reach); row++) {
      for (let column = start.column; column < Math.min(this.columns.count, start.column + reach); column++) {
        if (this.matrix.value(row, column) > this.matrix.value(best.row, best.column)) best = { row, column };
      }
    }
    return best;
  }

  hover(cell) {
    if (cell?.row === this.hovered?.row && cell?.column === this.hovered?.column) return;
    this.hovered = cell;
    this.onhover(cell);
    this.draw();
  }

  /** Moves the hovered cell by keys, and keeps it visible. */
  step(rows, columns) {
    const from = this.hovered ?? { row: (this.pinned ?? 0) - rows, column: -columns };
    const within = (index, count) => Math.min(count - 1, Math.max(0, index));
    const cell = {
      row: within(from.row + rows, this.rows.count),
      column: within(from.column + columns, this.columns.count),
    };
    this.viewport.reveal(cell.row, cell.column);
    this.hover(cell);
  }

  paint() {
    if (!this.matrix || !this.viewport.width) return;
    const { width, height, cell } = this.viewport;
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.pen ??= this.canvas.getContext("2d");
    this.fillCells(across, down, cell * ratio);
    if (this.causal) drawForbidden(this.pen, ratio, this.colours.theme);
    drawLeftOut(this.pen, ratio, this.colours.theme, this.viewport, this.left);
    if (cell >= 12) this.drawGaps(across, down, cell * ratio, ratio);
    if (cell >= NUMBERED) this.drawNumbers(ratio);
    drawLabels(this);
    this.drawMarks();
    this.sums.paint(this.viewport, ratio, this.colours.theme);
    this.canvas.dispatchEvent(new CustomEvent("drawn"));
  }

  fillCells(across, down, cell) {
    const level = this.matrix.level(cell);
    const colours = this.colours.table(this.matrix.code, this.matrix.most);
    if (this.image?.width !== across || this.image?.height !== down) {
      this.image = new ImageData(across, down);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const columnAt = new Int32Array(across);
    const tokenAt = new Int32Array(across);
    for (let x = 0; x < across; x++) {
      tokenAt[x] = Math.floor(this.viewport.x + (x + 0.5) / cell);
      columnAt[x] = Math.floor((tokenAt[x] * level.columns) / this.columns.count);
    }
    const end = tokenAt.findIndex((token) => token >= this.columns.count);
    const whole = end < 0 ? across : end;
    let before = -1;
    for (let y = 0; y < down; y++) {
      const row = Math.floor(this.viewport.y + (y + 0.5) / cell);
      const begin = y * across;
      if (row === before) {
        this.pixels.copyWithin(begin, begin - across, begin);
        continue;
      }
      before = row;
      if (row >= this.rows.count) {
        this.pixels.fill(0, begin, begin + across);
        continue;
      }
      let last = whole;
      if (this.causal) while (last > 0 && tokenAt[last - 1] > row) last--; // masked cells stay empty
      const from = Math.floor((row * level.rows) / this.rows.count) * level.columns;
      for (let x = 0; x < last; x++) this.pixels[begin + x] = colours[level.numbers[from + columnAt[x]]];
      this.pixels.fill(0, begin + last, begin + across);
    }
    this.pen.putImageData(this.image, 0, 0);
  }

  /** Thin gaps between cells. */
  drawGaps(across, down, cell, ratio) {
    this.pen.fillStyle = getComputedStyle(this.canvas).backgroundColor;
    const gap = Math.max(1, Math.round(ratio));
    for (let column = Math.ceil(this.viewport.x); ; column++) {
      const x = Math.round((column - this.viewport.x) * cell);
      if (x > across) break;
      this.pen.fillRect(x - gap, 0, gap, down);
    }
    for (let row = Math.ceil(this.viewport.y); ; row++) {
      const y = Math.round((row - this.viewport.y) * cell);
      if (y > down) break;
      this.pen.fillRect(0, y - gap, across, gap);
    }
  }

  drawNumbers(ratio) {
    const { cell, x, y } = this.viewport;
    this.pen.font = `${Math.round(Math.min(19, Math.max(12, cell * 0.26)) * ratio)}px system-ui, sans-serif`;
    this.pen.textAlign = "center";
    this.pen.textBaseline = "middle";
    for (const row of this.viewport.visibleRows()) {
      for (const column of this.viewport.visibleColumns()) {
        if ((this.causal && column > row) || this.left.has(column)) continue;
        const weight = this.matrix.value(row, column);
        if (Math.abs(weight) < LEAST) continue;
        this.pen.fillStyle = this.colours.ink(this.colours.rampPosition(weight));
        const size = Math.abs(weight);
        const text = `${weight < 0 ? "−" : ""}${size > 0.995 ? "1" : size.toFixed(2).slice(1)}`;
        this.pen.fillText(text, (column + 0.5 - x) * cell * ratio, (row + 0.5 - y) * cell * ratio);
      }
    }
  }

  drawMarks() {
    const { cell, x, y, width, height } = this.viewport;
    const frame = (node, row, from, to) => {
      node.hidden = row === null;
      if (row === null) return;
      node.style.transform = `translate(${from}px, ${(row - y) * cell}px)`;
      node.style.width = `${to}px`;
      node.style.height = `${Math.max(2, cell)}px`;
    };
    frame(this.pin, this.pinned, 0, Math.min(width, this.columns.count * cell));
    frame(this.band, this.hovered?.row ?? null, 0, width);
    frame(this.spot, this.hovered?.row ?? null, this.hovered ? (this.hovered.column - x) * cell : 0, Math.max(2, cell));
    for (const node of [this.pin, this.spot]) if (parseFloat(node.style.height) > height) node.hidden = true;
  }
}

/** How high a map may be: to the bottom of the window, or most of a window if little is left: the page scrolls. */
function roomFor(node) {
  const room = window.innerHeight - (node.getBoundingClientRect().top + window.scrollY) - 44;
  const least = node.closest("[data-one-screen]") ? 0.3 : 0.55; // of the window; with less, the page scrolls to the map
  return room >= least * window.innerHeight ? room : 0.8 * window.innerHeight;
}
