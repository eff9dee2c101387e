// The heat map of one matrix: only what is in sight is drawn, at the size it is seen.

import { element, oncePerFrame, roomBelow } from "qkv/elements.js";
import { Sight } from "qkv/sight.js";
import { label, visible } from "qkv/words.js";

const LARGEST = 78; // pixels of a cell of a short text
const LABEL = 15; // pixels a label needs at least
const NUMBERED = 34; // cells from this size on have their number in them

export class Heat {
  /** `onhover(row, column)` and `onpick(row)` are told in words of the matrix; nothing hovered is null. */
  constructor({ name, onhover = () => {}, onpick = () => {}, room = () => this.element.clientWidth }) {
    this.onhover = onhover;
    this.room = room; // how wide it may be
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
    this.element = element("div", { class: "heat" }, this.columnLabels, this.rowLabels, this.plot);
    this.hovered = null;
    this.pinned = null;
    this.draw = oncePerFrame(() => this.paint());
    this.sight = new Sight(this.canvas, {
      moved: this.draw,
      hover: (at) => this.hover(at && this.strongest(at)),
      pick: ({ row }) => onpick(row),
    });
    addEventListener("resize", () => this.arrange());
  }

  /** A matrix with the names of its sides. The same words again keep what is in sight. */
  show(matrix, rows, columns, colours, { pinned = null, causal = false } = {}) {
    const same = this.rows?.texts === rows.texts && this.columns?.texts === columns.texts;
    Object.assign(this, { matrix, rows, columns, colours, pinned, causal });
    if (!same) {
      this.hover(null);
      this.sight.set(rows.count, columns.count);
      this.measure();
    }
    this.arrange(!same);
    this.paint();
  }

  /** Room for the longest label, within limits. */
  measure() {
    const pen = element("canvas").getContext("2d");
    pen.font = `13px ${getComputedStyle(this.element).fontFamily}`;
    const widest = (names) =>
      names.texts.reduce((most, text) => Math.max(most, pen.measureText(visible(text.slice(0, 40))).width), 0);
    this.widths = [widest(this.rows), widest(this.columns)];
  }

  arrange(fit = false) {
    const width = this.room();
    if (!this.matrix || !(width > 0)) return; // it is not on the page
    const room = roomBelow(this.element, 24);
    let [left, above] = [0, 0];
    for (let size = 13; ; size = this.size) {
      // the larger the cells, the larger the labels, which leave less to the cells
      left = Math.min(Math.ceil((this.widths[0] * size) / 13) + 14, width * 0.3, 170);
      above = Math.min(Math.ceil((this.widths[1] * size) / 13) + 14, 130);
      this.sight.resize(width - left - 2, room - above, LARGEST, fit);
      this.size = Math.min(18, Math.max(13, Math.round(this.sight.least * 0.24)));
      if (this.size <= size) break;
    }
    // labels that fit above a cell are not turned
    this.flat = (this.widths[1] * this.size) / 13 + 8 <= this.sight.least;
    if (this.flat) above = 2 * this.size;
    this.element.style.fontSize = `${this.size}px`;
    this.element.style.gridTemplateColumns = `${left}px ${this.sight.width}px`;
    this.element.style.gridTemplateRows = `${above}px ${this.sight.height}px`;
    this.element.classList.toggle("flat", this.flat);
    this.draw();
  }

  /** Of the words under one pixel, the two with the highest weight between them. */
  strongest(at) {
    const reach = Math.ceil(1 / this.sight.cell);
    let best = at;
    for (let row = at.row; row < Math.min(this.rows.count, at.row + reach); row++) {
      for (let column = at.column; column < Math.min(this.columns.count, at.column + reach); column++) {
        if (this.matrix.value(row, column) > this.matrix.value(best.row, best.column)) best = { row, column };
      }
    }
    return best;
  }

  hover(at) {
    if (at?.row === this.hovered?.row && at?.column === this.hovered?.column) return;
    this.hovered = at;
    this.onhover(at);
    this.draw();
  }

  /** Moves the hovered cell by keys, and keeps it in sight. */
  step(rows, columns) {
    const from = this.hovered ?? { row: (this.pinned ?? 0) - rows, column: -columns };
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    const at = {
      row: within(from.row + rows, this.rows.count),
      column: within(from.column + columns, this.columns.count),
    };
    this.sight.reveal(at.row, at.column);
    this.hover(at);
  }

  paint() {
    if (!this.matrix || !this.sight.width) return;
    const { width, height, cell } = this.sight;
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.pen ??= this.canvas.getContext("2d");
    this.fill(across, down, cell * ratio, ratio);
    if (cell >= 12) this.rule(across, down, cell * ratio, ratio);
    if (cell >= NUMBERED) this.number(ratio);
    this.name();
    this.mark();
    this.canvas.dispatchEvent(new CustomEvent("drawn"));
  }

  fill(across, down, cell, ratio) {
    const level = this.matrix.level(cell);
    const pixels = this.colours.table(this.matrix.code, this.matrix.most);
    if (this.image?.width !== across || this.image?.height !== down) {
      this.image = new ImageData(across, down);
      this.words = new Uint32Array(this.image.data.buffer);
    }
    const columnAt = new Int32Array(across);
    const wordAt = new Int32Array(across);
    for (let x = 0; x < across; x++) {
      wordAt[x] = Math.floor(this.sight.x + (x + 0.5) / cell);
      columnAt[x] = Math.floor((wordAt[x] * level.columns) / this.columns.count);
    }
    const end = wordAt.findIndex((word) => word >= this.columns.count);
    const whole = end < 0 ? across : end;
    let before = -1;
    for (let y = 0; y < down; y++) {
      const row = Math.floor(this.sight.y + (y + 0.5) / cell);
      const begin = y * across;
      if (row === before) {
        this.words.copyWithin(begin, begin - across, begin);
        continue;
      }
      before = row;
      if (row >= this.rows.count) {
        this.words.fill(0, begin, begin + across);
        continue;
      }
      let last = whole;
      if (this.causal) while (last > 0 && wordAt[last - 1] > row) last--; // what the mask hides is not a weight of 0
      const from = Math.floor((row * level.rows) / this.rows.count) * level.columns;
      for (let x = 0; x < last; x++) this.words[begin + x] = pixels[level.numbers[from + columnAt[x]]];
      this.words.fill(0, begin + last, begin + across);
    }
    this.pen.putImageData(this.image, 0, 0);
  }

  /** Thin gaps between cells. */
  rule(across, down, cell, ratio) {
    this.pen.fillStyle = getComputedStyle(this.canvas).backgroundColor;
    const gap = Math.max(1, Math.round(ratio));
    for (let column = Math.ceil(this.sight.x); ; column++) {
      const x = Math.round((column - this.sight.x) * cell);
      if (x > across) break;
      this.pen.fillRect(x - gap, 0, gap, down);
    }
    for (let row = Math.ceil(this.sight.y); ; row++) {
      const y = Math.round((row - this.sight.y) * cell);
      if (y > down) break;
      this.pen.fillRect(0, y - gap, across, gap);
    }
  }

  number(ratio) {
    const { cell, x, y } = this.sight;
    this.pen.font = `${Math.round(Math.min(19, Math.max(12, cell * 0.26)) * ratio)}px system-ui, sans-serif`;
    this.pen.textAlign = "center";
    this.pen.textBaseline = "middle";
    for (const row of this.sight.rowsInSight()) {
      for (const column of this.sight.columnsInSight()) {
        if (this.causal && column > row) continue;
        const weight = this.matrix.value(row, column);
        if (weight < 0.005) continue;
        this.pen.fillStyle = this.colours.ink(this.colours.place(weight));
        const text = weight > 0.995 ? "1" : weight.toFixed(2).slice(1);
        this.pen.fillText(text, (column + 0.5 - x) * cell * ratio, (row + 0.5 - y) * cell * ratio);
      }
    }
  }

  /** The labels in sight: as many as there is room for, and always that of the cell that is looked at. */
  name() {
    const { cell, x, y } = this.sight;
    const within = (at, length) => (cell < LABEL ? Math.min(length - LABEL / 2, Math.max(LABEL / 2, at)) : at);
    const put = (parent, names, every, hovered, place, length, move) => {
      let shown = [];
      for (let index = every[0]; index <= every.at(-1); index += every.stride) {
        if (hovered === null || index === hovered || Math.abs(index - hovered) * cell >= LABEL) shown.push(index);
      }
      if (hovered !== null && !shown.includes(hovered)) shown.push(hovered);
      const at = (index) => within((index + 0.5) * cell - place * cell, length);
      const crowded = (index, number) =>
        number > 0 && index !== hovered && at(index) - at(shown[number - 1]) < LABEL - 3;
      if (cell < LABEL) shown = shown.filter((index, number) => !crowded(index, number));
      while (parent.children.length < shown.length) parent.append(element("span"));
      while (parent.children.length > shown.length) parent.lastChild.remove();
      shown.forEach((index, number) => {
        const made = parent.children[number];
        if (made.of !== names.texts[index]) {
          made.of = names.texts[index];
          made.replaceChildren(label(made.of));
        }
        made.classList.toggle("hovered", index === hovered);
        move(made, at(index));
      });
    };
    const stride = Math.max(1, Math.ceil(LABEL / cell));
    const strided = (range) => Object.assign([Math.ceil(range[0] / stride) * stride, range.at(-1)], { stride });
    const rows = strided(this.sight.rowsInSight());
    const columns = strided(this.sight.columnsInSight());
    put(this.rowLabels, this.rows, rows, this.hovered?.row ?? null, y, this.sight.height, (made, at) => {
      made.style.transform = `translateY(${at}px) translateY(-50%)`;
    });
    const widest = this.flat ? `${cell}px` : "";
    put(this.columnLabels, this.columns, columns, this.hovered?.column ?? null, x, this.sight.width, (made, at) => {
      made.style.maxWidth = widest;
      made.style.transform = this.flat
        ? `translateX(${at}px) translateX(-50%)`
        : `translateX(${at}px) translateX(-50%) rotate(180deg)`;
    });
  }

  mark() {
    const { cell, x, y, width, height } = this.sight;
    const place = (made, row, from, to) => {
      made.hidden = row === null;
      if (row === null) return;
      made.style.transform = `translate(${from}px, ${(row - y) * cell}px)`;
      made.style.width = `${to}px`;
      made.style.height = `${Math.max(2, cell)}px`;
    };
    place(this.pin, this.pinned, 0, Math.min(width, this.columns.count * cell));
    place(this.band, this.hovered?.row ?? null, 0, width);
    place(this.spot, this.hovered?.row ?? null, this.hovered ? (this.hovered.column - x) * cell : 0, Math.max(2, cell));
    for (const made of [this.pin, this.spot]) if (parseFloat(made.style.height) > height) made.hidden = true;
  }
}
