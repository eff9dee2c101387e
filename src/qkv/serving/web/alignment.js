// @ts-check
// Cross-attention between a text and its translation: as lines, and as a heat map.

import { Colours } from "qkv/colour.js";
import { element, percent, svg } from "qkv/elements.js";
import { HeatMap } from "qkv/heat_map.js";
import { CODES, Matrix } from "qkv/matrix.js";
import { label, quoted } from "qkv/token_text.js";
import { note } from "./notices.js";

const HIGH = 36; // pixels of a word
const LEAST = 0.05; // smaller weights are not drawn

export class Alignment {
  constructor(app) {
    this.app = app;
    this.sides = ["source", "target"].map((side) => element("ol", { class: `aligned ${side}` }));
    this.drawing = svg("svg", { class: "alignment-lines", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.status = element("p", { class: "status" }); // screen readers read it as the label of the word
    this.map = new HeatMap({
      name: "Attention weights: rows are words of the translation (queries), columns words of the text (keys)",
      onhover: (cell) => cell && this.showCell(cell.row, cell.column),
    });
    this.details = element("details", {}, element("summary", {}, "As a matrix"), this.map.element);
    this.details.addEventListener("toggle", () => this.redraw(true));
    this.element = element(
      "div",
      { class: "alignment" },
      element("h3", {}, "Attention to the source"),
      note("Point at a word, or move to it with Tab, to see its lines alone. The weights are the mean of all heads."),
      element("div", { class: "alignment-sides" }, this.sides[0], this.drawing, this.sides[1]),
      this.status,
      this.details,
    );
  }

  show(alignment) {
    this.element.hidden = !alignment;
    this.alignment = alignment;
    this.drawn = null;
    if (!alignment) return;
    this.list(0, alignment.source);
    this.list(1, alignment.target);
    this.lines();
    this.status.textContent = "";
    this.redraw(true);
  }

  list(side, words) {
    this.sides[side].setAttribute("aria-label", side ? "Translation" : "Source");
    this.sides[side].replaceChildren(
      ...words.map((text, index) => {
        const button = element(
          "button",
          { type: "button", class: "aligned-word", "aria-label": `${quoted(text)} ${this.strongest(side, index)}` },
          label(text),
        );
        for (const event of ["focus", "pointerenter"]) {
          button.addEventListener(event, () => this.focusWord(side, index));
        }
        for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => this.focusWord());
        return element("li", {}, button);
      }),
    );
  }

  /** Pairs of an index on the other side and a weight, the largest first. */
  others(side, index) {
    const { weights } = this.alignment;
    const all = side ? weights[index] : weights.map((row) => row[index]);
    return all.map((weight, other) => [other, weight]).sort((one, other) => other[1] - one[1]);
  }

  strongest(side, index) {
    const names = side ? this.alignment.source : this.alignment.target;
    const most = this.others(side, index).slice(0, 3);
    const parts = most.map(([other, weight]) => `${quoted(names[other])} ${percent(weight)}`);
    return `${side ? "attends to" : "is attended to by"} ${parts.join(", ")}`;
  }

  lines() {
    const { source, target, weights } = this.alignment;
    const high = Math.max(source.length, target.length) * HIGH;
    this.drawing.setAttribute("viewBox", `0 0 100 ${high}`);
    this.drawing.style.height = `${high}px`;
    const at = (index) => (index + 0.5) * HIGH;
    const paths = weights.flatMap((row, to) =>
      row.map((weight, from) => {
        if (weight < LEAST) return null;
        const d = `M0,${at(from)}C50,${at(from)} 50,${at(to)} 100,${at(to)}`;
        const path = svg("path", { d, "data-from": from, "data-to": to, "vector-effect": "non-scaling-stroke" });
        path.style.strokeWidth = `${1 + 5 * weight}px`;
        path.style.opacity = String(0.15 + 0.85 * weight);
        return path;
      }),
    );
    this.drawing.replaceChildren(...paths.filter(Boolean));
  }

  /** Shows only the lines of one word, or all. */
  focusWord(side = null, index = null) {
    const weights = side === null ? new Map() : new Map(this.others(side, index));
    for (const path of this.drawing.children) {
      path.classList.toggle("faint", side !== null && Number(path.dataset[side ? "to" : "from"]) !== index);
    }
    this.sides.forEach((list, which) => {
      [...list.children].forEach(({ firstChild: button }, other) => {
        const isFocus = which === side && other === index;
        const touched = side !== null && which !== side && weights.get(other) >= LEAST;
        button.classList.toggle("own", isFocus);
        button.classList.toggle("faint", side !== null && !isFocus && !touched);
      });
    });
    if (side === null) return;
    const name = (side ? this.alignment.target : this.alignment.source)[index];
    this.status.textContent = `${quoted(name)} ${this.strongest(side, index)}`;
  }

  showCell(row, column) {
    const { source, target, weights } = this.alignment;
    this.status.textContent = `${quoted(target[row])} → ${quoted(source[column])}: ${percent(weights[row][column])}`;
  }

  /** Draws the heat map in the colours of the theme. */
  redraw(force = false) {
    const { theme } = this.app;
    if (!this.alignment || !this.details.open || (!force && this.drawn === theme)) return;
    this.drawn = theme;
    const { source, target, weights } = this.alignment;
    const code = CODES.linear16;
    const numbers = Uint16Array.from(weights.flat(), (weight) => Math.round(Math.min(1, weight) * code.steps));
    const [rows, columns] = [target.length, source.length];
    const matrix = new Matrix(rows, columns, { rows, columns, numbers }, code);
    const names = (texts) => ({ texts, count: texts.length });
    this.map.show(matrix, names(target), names(source), new Colours(theme, "root"));
  }
}
