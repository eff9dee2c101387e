// Lines between the words of a text and of its translation, as bold as the weight; and the same as a heat map.

import { element, percent, svg } from "qkv/elements.js";
import { Colours } from "qkv/colour.js";
import { Heat } from "qkv/heat.js";
import { CODES, Matrix } from "qkv/matrix.js";
import { label, quoted } from "qkv/words.js";
import { note } from "./notices.js";

const HIGH = 36; // pixels of a word
const LEAST = 0.05; // a weight that is still a line

export class Alignment {
  constructor(app) {
    this.app = app;
    this.sides = ["source", "target"].map((side) => element("ol", { class: `aligned ${side}` }));
    this.drawing = svg("svg", { class: "alignment-lines", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.said = element("p", { class: "status" }); // who hears the page hears it as the word's own name
    this.heat = new Heat({
      name: "Weights: rows are words of the translation, columns words of the text",
      onhover: (at) => at && this.say(at.row, at.column),
    });
    this.map = element("details", {}, element("summary", {}, "As a matrix"), this.heat.element);
    this.map.addEventListener("toggle", () => this.redraw(true));
    this.element = element(
      "div",
      { class: "alignment" },
      element("h3", {}, "Which words it looked at"),
      note("Point at a word, or go to it with Tab: its lines stay. The weights are the mean of all heads."),
      element("div", { class: "alignment-sides" }, this.sides[0], this.drawing, this.sides[1]),
      this.said,
      this.map,
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
    this.said.textContent = "";
    this.redraw(true);
  }

  list(side, words) {
    this.sides[side].setAttribute("aria-label", side ? "The translation" : "The text");
    this.sides[side].replaceChildren(
      ...words.map((text, place) => {
        const button = element(
          "button",
          { type: "button", class: "aligned-word", "aria-label": `${quoted(text)} ${this.strongest(side, place)}` },
          label(text),
        );
        for (const event of ["focus", "pointerenter"]) button.addEventListener(event, () => this.alone(side, place));
        for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => this.alone());
        return element("li", {}, button);
      }),
    );
  }

  /** Pairs of a place on the other side and a weight, the highest first. */
  others(side, place) {
    const { weights } = this.alignment;
    const all = side ? weights[place] : weights.map((row) => row[place]);
    return all.map((weight, other) => [other, weight]).sort((one, other) => other[1] - one[1]);
  }

  strongest(side, place) {
    const names = side ? this.alignment.source : this.alignment.target;
    const most = this.others(side, place).slice(0, 3);
    const told = most.map(([other, weight]) => `${quoted(names[other])} ${percent(weight)}`);
    return `${side ? "looks at" : "is looked at by"} ${told.join(", ")}`;
  }

  lines() {
    const { source, target, weights } = this.alignment;
    const high = Math.max(source.length, target.length) * HIGH;
    this.drawing.setAttribute("viewBox", `0 0 100 ${high}`);
    this.drawing.style.height = `${high}px`;
    const at = (place) => (place + 0.5) * HIGH;
    const paths = weights.flatMap((row, to) =>
      row.map((weight, from) => {
        if (weight < LEAST) return null;
        const d = `M0,${at(from)}C50,${at(from)} 50,${at(to)} 100,${at(to)}`;
        const made = svg("path", { d, "data-from": from, "data-to": to, "vector-effect": "non-scaling-stroke" });
        made.style.strokeWidth = `${1 + 5 * weight}px`;
        made.style.opacity = 0.15 + 0.85 * weight;
        return made;
      }),
    );
    this.drawing.replaceChildren(...paths.filter(Boolean));
  }

  /** Only the lines of one word, or of all. */
  alone(side = null, place = null) {
    const weights = side === null ? new Map() : new Map(this.others(side, place));
    for (const path of this.drawing.children) {
      path.classList.toggle("faint", side !== null && Number(path.dataset[side ? "to" : "from"]) !== place);
    }
    this.sides.forEach((list, which) => {
      [...list.children].forEach(({ firstChild: button }, other) => {
        const own = which === side && other === place;
        const touched = side !== null && which !== side && weights.get(other) >= LEAST;
        button.classList.toggle("own", own);
        button.classList.toggle("faint", side !== null && !own && !touched);
      });
    });
    if (side === null) return;
    const name = (side ? this.alignment.target : this.alignment.source)[place];
    this.said.textContent = `${quoted(name)} ${this.strongest(side, place)}`;
  }

  say(row, column) {
    const { source, target, weights } = this.alignment;
    this.said.textContent = `${quoted(target[row])} → ${quoted(source[column])}: ${percent(weights[row][column])}`;
  }

  /** The heat map, of the theme. */
  redraw(anew = false) {
    const { theme } = this.app;
    if (!this.alignment || !this.map.open || (!anew && this.drawn === theme)) return;
    this.drawn = theme;
    const { source, target, weights } = this.alignment;
    const code = CODES.linear16;
    const numbers = Uint16Array.from(weights.flat(), (weight) => Math.round(Math.min(1, weight) * code.steps));
    const [rows, columns] = [target.length, source.length];
    const matrix = new Matrix(rows, columns, { rows, columns, numbers }, code);
    const names = (texts) => ({ texts, count: texts.length });
    this.heat.show(matrix, names(target), names(source), new Colours(theme, "root"));
  }
}
