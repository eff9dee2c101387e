// @ts-check
// The sums of a map: below, how much each key is looked at in all; beside, the sum of each row, which is 1.

import { element } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";

const BESIDE = 48; // pixels
const BELOW = 46;
const BAR = 24; // pixels of the highest bar
const NUMBERED = 26; // cells of this width and more have room for a number
const INK = { light: ["#1c1e22", "#0a62a8"], dark: ["#e8e8e6", "#7cc4f5"] };

export class HeatSums {
  constructor() {
    this.below = element("canvas", { class: "sum-below", role: "img", "aria-label": "The sum of each column" });
    this.beside = element("canvas", { class: "sum-beside", role: "img", "aria-label": "The sum of each row" });
    this.name = element("p", { class: "sum-name" }, "sum of column");
    this.parts = [this.below, this.beside, this.name];
    this.show(null);
  }

  /** The room that the sums take, beside and below. */
  get size() {
    return this.matrix ? [BESIDE, BELOW] : [0, 0];
  }

  show(matrix, columns) {
    if (matrix && this.matrix !== matrix) {
      this.rowSums = Array.from({ length: matrix.rows }, (_, row) => matrix.row(row).reduce((sum, w) => sum + w, 0));
      this.columnSums = new Float64Array(matrix.columns);
      for (let row = 0; row < matrix.rows; row++) matrix.row(row).forEach((w, column) => (this.columnSums[column] += w));
      const order = [...this.columnSums.keys()].sort((one, other) => this.columnSums[other] - this.columnSums[one]);
      const most = order.slice(0, 3).map((column) => `${quoted(columns.texts[column])} ${this.columnSums[column].toFixed(2)}`);
      this.below.setAttribute("aria-label", `The sum of each column; the largest: ${most.join(", ")}`);
    }
    this.matrix = matrix;
    for (const part of this.parts) part.hidden = !matrix;
  }

  paint({ cell, x, y, width, height }, ratio, theme) {
    if (!this.matrix) return;
    const [ink, blue] = INK[theme];
    const begin = (canvas, wide, high) => {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.textBaseline = "middle";
      pen.font = "12px system-ui, sans-serif";
      return pen;
    };
    const across = begin(this.below, width, BELOW);
    const most = Math.max(1e-9, ...this.columnSums);
    across.textAlign = "center";
    this.columnSums.forEach((sum, column) => {
      const left = (column - x) * cell;
      if (left + cell < 0 || left > width) return;
      across.fillStyle = blue;
      across.fillRect(left, 2, Math.max(1, cell - 2), (BAR * sum) / most);
      across.fillStyle = ink;
      if (cell >= NUMBERED) across.fillText(sum.toFixed(cell > 40 ? 2 : 1), left + cell / 2, BAR + 13);
    });
    const down = begin(this.beside, BESIDE, height);
    down.fillStyle = ink;
    this.rowSums.forEach((sum, row) => {
      const middle = (row + 0.5 - y) * cell;
      if (cell >= 14 && middle > 0 && middle < height) down.fillText(sum.toFixed(2), 8, middle);
    });
  }
}
