// @ts-check
// The slider of the lines: weights below it have no line, and how many these are is told.

import { element, percent } from "qkv/elements.js";

const LEAST = 0.005; // smaller weights are never drawn
const COUNTED = 512; // tokens up to which lines are counted

export class Threshold {
  constructor(page) {
    const pick = () => page.set({ least: Number(this.slider.value) });
    this.slider = element("input", { type: "range", min: 0, max: 100, step: 1, id: "least", oninput: pick });
    this.value = element("output", { for: "least" });
    const name = element("label", { for: "least" }, "Weights from");
    this.element = element("div", { class: "threshold" }, name, this.slider, this.value);
  }

  least({ least }) {
    return Math.max(LEAST, least / 100);
  }

  /** Sets the slider, and counts the lines; `most` is the number of lines of a token, 0 for all. */
  show(state, matrices, most) {
    const least = this.least(state);
    this.slider.value = state.least;
    this.value.textContent = percent(least);
    const each = most ? ` At most ${most} lines per token.` : "";
    this.told = `Weights of ${percent(least)} and more; the larger, the bolder.${each}`;
    const known = matrices.filter((matrix) => matrix);
    if (!known.length || known[0].rows > COUNTED) return;
    let [drawn, all] = [0, 0];
    for (const matrix of known) {
      for (let row = 0; row < matrix.rows; row++) {
        for (const weight of matrix.row(row)) {
          if (weight > LEAST) all++;
          if (weight > least) drawn++;
        }
      }
    }
    if (least > LEAST) this.told = `${drawn} of ${all} lines: weights of ${percent(least)} and more.${each}`;
  }
}
