// @ts-check
// The first step: the query as a chart, and below it the same numbers as the strip that the other steps use.

import { element, svg } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { VectorStrip, short, signedColour } from "qkv/vector_strip.js";

const WIDTH = 1000;
const HEIGHT = 170;

export class QueryChart {
  constructor(onhover) {
    this.title = element("p", { class: "strip-name query-name" });
    this.drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.strip = new VectorStrip("of-query", onhover);
    const text = "The same numbers as a strip: blue above 0, red below, the stronger the larger.";
    this.note = element("p", { class: "strip-name" }, text);
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    const chart = element("div", { class: "query-bars" }, this.drawn);
    this.element = element("div", { class: "query-chart" }, this.title, chart, this.strip.element, this.note);
    this.element.append(this.readout);
  }

  show({ row, query, theme, most }) {
    const numbers = row.query;
    const [low, high] = [Math.min(0, ...numbers), Math.max(0, ...numbers)];
    const unit = (HEIGHT - 4) / (high - low || 1);
    const wide = WIDTH / numbers.length;
    const zero = 2 + high * unit;
    const bars = Array.from(numbers, (number, index) => {
      const tall = Math.abs(number) * unit;
      return svg("rect", {
        x: index * wide + 0.1 * wide,
        y: number < 0 ? zero : zero - tall,
        width: 0.8 * wide,
        height: Math.max(0.5, tall),
        fill: `rgb(${signedColour(number < 0 ? -1 : 1, 1, theme)})`,
      });
    });
    const axis = svg("line", { class: "rule", x1: 0, x2: WIDTH, y1: zero, y2: zero });
    this.drawn.replaceChildren(axis, ...bars);
    const range = `${numbers.length} numbers from ${short(Math.min(...numbers))} to ${short(Math.max(...numbers))}`;
    this.drawn.setAttribute("aria-label", `Query of ${quoted(query)}: ${range}`);
    this.title.textContent = `query of ${quoted(query)}: ${range}`;
    this.strip.show(numbers, most, theme, `Query of ${quoted(query)}`);
  }

  mark(index) {
    this.element.classList.toggle("marking", index !== null);
    if (index !== null) this.element.style.setProperty("--index", index);
  }
}
