// @ts-check
// Number by number: how the score of one query and key, or the head's output, is summed.

import { element } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { largest, runningSums } from "qkv/walk_math.js";

const number = (value, kind = "") => element("td", { class: kind, "data-value": value }, short(value));

export class NumberPanel {
  /** `onhover(index)` gets the number of the row under the pointer, or null. */
  constructor(onhover) {
    this.title = element("h2");
    this.sorted = element("input", { type: "checkbox", onchange: () => this.redraw() });
    this.order = element("label", { class: "order" }, this.sorted, " largest first");
    this.head = element("thead");
    this.body = element("tbody");
    const table = element("table", { class: "by-number" }, this.head, this.body);
    this.box = element("div", { class: "number-box", tabindex: 0, role: "region" }, table);
    this.element = element("div", { class: "number-panel" }, this.title, this.order, this.box);
    this.body.addEventListener("pointerover", (event) => {
      const row = event.target.closest("tr");
      if (row) onhover(Number(row.dataset.index));
    });
    this.body.addEventListener("pointerleave", () => onhover(null));
  }

  /** Shows the sum of a score, or from the step of the values on that of the output. */
  show(told) {
    this.told = told;
    this.redraw();
  }

  redraw() {
    const { walk, row, picked, step, query, keys } = this.told;
    const one = row.rows[picked];
    const summed = step >= 7;
    this.title.textContent = summed ? `Value of ${quoted(keys[picked])}` : `${quoted(query)} · ${quoted(keys[picked])}`;
    this.box.setAttribute("aria-label", summed ? "Values, number by number" : "Products, number by number");
    const [titles, lines, sizes] = summed ? this.outputLines(row, one) : this.scoreLines(walk, row, one);
    this.head.replaceChildren(element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))));
    const order = this.sorted.checked ? largest(sizes, sizes.length, true) : Array.from(sizes, (_, index) => index);
    const running = summed ? null : runningSums(order.map((index) => sizes[index]));
    const rows = order.map((index, place) => {
      const cells = [...lines(index), ...(running ? [number(running[place], "running")] : [])];
      return element("tr", { "data-index": index }, element("th", { scope: "row" }, String(index + 1)), ...cells);
    });
    this.body.replaceChildren(...rows);
  }

  scoreLines(walk, row, one) {
    const additive = walk.score === "additive";
    const titles = ["i", "query", "key", additive ? "w·tanh(q + k)" : "product", "sum so far"];
    const cells = (i) => [
      number(row.query[i], "is-query"),
      number(one.key[i], "is-key"),
      number(one.terms[i], "product"),
    ];
    return [titles, cells, one.terms];
  }

  outputLines(row, one) {
    const titles = ["i", "value", "× weight", "all tokens"];
    const cells = (i) => [
      number(one.value[i], "is-value"),
      number(one.value[i] * one.weight, "weighted"),
      number(row.output[i], "output"),
    ];
    return [titles, cells, row.output];
  }

  mark(index) {
    this.body.querySelector(".marked")?.classList.remove("marked");
    if (index !== null) this.body.querySelector(`[data-index="${index}"]`)?.classList.add("marked");
  }
}
