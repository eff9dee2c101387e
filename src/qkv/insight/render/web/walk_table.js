// @ts-check
// The table of the walk: a row for each token that can be looked at, a column for each step.

import { element, percent } from "qkv/elements.js";
import { quoted, tokenText, visible } from "qkv/token_text.js";
import { VectorStrip, short } from "qkv/vector_strip.js";
import { weightSlider } from "qkv/walk_drag.js";
import { mixture, runningSums, scaleOf, sum } from "qkv/walk_math.js";

// Each column, the step from which it is visible, and the steps in which a narrow page shows it.
const COLUMNS = [
  { name: "key", from: 2, narrow: [1, 2, 3] },
  { name: "product", from: 3, narrow: [3] },
  { name: "sum", from: 3, narrow: [3, 4] },
  { name: "scaled", from: 4, narrow: [4, 5] },
  { name: "score", from: 5, narrow: [5, 6] },
  { name: "weight", from: 6, narrow: [6, 7] },
  { name: "value", from: 7, narrow: [7] },
  { name: "weighted", from: 7, narrow: [7, 8] },
];
const SWEEP = 900; // milliseconds in which the products appear
const still = matchMedia("(prefers-reduced-motion: reduce)");
const STRIPS = ["key", "product", "value", "weighted"];
const NOW = { 2: ["key"], 3: ["product", "sum"], 4: ["scaled"], 5: ["score"], 6: ["weight"], 7: ["value", "weighted"] };

/** A percentage in little room. */
const part = (weight) => (weight < 0.00005 ? "0.00%" : percent(weight));

/** A token with its marks of spaces explained. */
const titleOf = (text) => (visible(text).includes("␣") ? `${visible(text)} (␣ is a space)` : visible(text));

const cell = (tag, name, ...content) => element(tag, { class: `col-${name}`, "data-column": name }, ...content);

export class WalkTable {
  /** @type {(picked: any) => void} */
  onpick;
  /** @type {(row: number, weight: number) => void} */
  onweight;
  /** @type {(index: any, at: any) => void} */
  onhover;

  /** `onpick(position)` of a row, `onweight(position, weight)` of a moved bar, `onhover(index)` of a number. */
  constructor({ onpick, onweight, onhover }) {
    Object.assign(this, { onpick, onweight, onhover });
    this.query = new VectorStrip("of-query", onhover);
    this.queryName = element("span", { class: "query-name" });
    this.titles = Object.fromEntries(COLUMNS.map(({ name }) => [name, cell("th", name)]));
    for (const title of Object.values(this.titles)) title.scope = "col";
    this.output = new VectorStrip("of-value", onhover);
    this.total = element("span", { class: "number" });
    this.handed = element("th", { scope: "row", class: "handed" }, "added up");
    this.readout = element("span", { class: "readout", "aria-live": "polite" });
    const beside = element("td", { class: "beside-query", colspan: COLUMNS.length - 1 }, this.readout);
    const ends = COLUMNS.slice(0, -1).map(({ name }) => cell("td", name, ...(name === "weight" ? [this.total] : [])));
    this.queryRow = element("tr", { class: "query-row" }, element("th", { scope: "row" }, this.queryName));
    this.queryRow.append(cell("td", "key", this.query.element), beside);
    this.endRow = element("tr", {}, this.handed, ...ends, cell("td", "weighted", this.output.element));
    this.body = element("tbody");
    this.corner = element("th", { scope: "col", class: "corner-name" });
    const head = element("tr", {}, this.corner, ...COLUMNS.map(({ name }) => this.titles[name]));
    this.element = element(
      "table",
      { class: "walk-table" },
      element("colgroup", {}, element("col", { class: "col-token" }), ...COLUMNS.map(({ name }) => cell("col", name))),
      element("thead", {}, this.queryRow, head),
      this.body,
      element("tfoot", {}, this.endRow),
    );
    this.rows = new Map();
  }

  /** Makes the rows of these positions; `folded` others share one row. */
  build(positions, texts, folded) {
    this.positions = positions;
    this.rows = new Map(positions.map((at) => [at, this.makeRow(at, texts[at])]));
    const others = folded.length ? [this.makeOthers(folded)] : [];
    this.body.replaceChildren(...[...this.rows.values()].map(({ node }) => node), ...others);
    this.folded = folded;
  }

  makeRow(at, text) {
    const strips = Object.fromEntries(STRIPS.map((name) => [name, new VectorStrip(`of-${name}`, this.hoverOf(at))]));
    const pick = element(
      "button",
      { type: "button", class: "walk-token", title: titleOf(text), onclick: () => this.onpick(at) },
      tokenText(text, { class: "word" }),
      element("span", { class: "position", "aria-hidden": "true" }, String(at)),
    );
    const slider = element("input", {
      ...{ type: "range", class: "weight-bar", min: 0, max: 1, step: 0.01 },
      "aria-label": `Weight of ${quoted(text)} at position ${at}`,
    });
    weightSlider(slider, (weight) => this.onweight(at, weight));
    const weight = element("span", { class: "number" });
    const cells = {};
    for (const { name } of COLUMNS) cells[name] = cell("td", name, ...(name in strips ? [strips[name].element] : []));
    const why = element("span", { class: "why" });
    cells.weight.append(slider, weight, why);
    const node = element("tr", { "data-at": at }, element("th", { scope: "row" }, pick), ...Object.values(cells));
    return { node, pick, strips, cells, slider, weight, why, text };
  }

  hoverOf(at) {
    return (index) => this.onhover(index, at);
  }

  /** One row for the tokens that are not listed. */
  makeOthers(folded) {
    this.rest = { strip: new VectorStrip("of-weighted"), weight: element("span", { class: "number" }) };
    const cells = COLUMNS.map(({ name }) => cell("td", name));
    cells[5].append(this.rest.weight);
    cells[7].append(this.rest.strip.element);
    const name = element("th", { scope: "row", class: "others" }, `${folded.length} others`);
    return element("tr", { class: "rest" }, name, ...cells);
  }

  /** The scales of the colours, which do not change from token to token. */
  scales(walk) {
    if (this.scaled !== walk) {
      this.scaled = walk;
      this.most = { query: scaleOf(walk.query), key: scaleOf(walk.key), value: scaleOf(walk.value) };
    }
    return this.most;
  }

  /** Shows the numbers of one query up to a step. */
  show({ walk, row, step, picked, query, theme, reason, divisor, edits }) {
    const most = this.scales(walk);
    most.product = scaleOf(row.rows.map(({ terms }) => terms));
    this.query.show(row.query, most.query, theme, `Query of ${quoted(query)}`);
    this.queryName.replaceChildren("query of ", tokenText(query, { class: "word" }));
    this.retitle(walk, divisor, step);
    const known = walk.score !== "other"; // else a module computes its scores in its own way
    for (const [at, parts] of this.rows)
      this.showRow(row.rows[at], parts, { most, theme, step, picked, reason, known });
    if (this.folded.length) this.showOthers(row, most, theme);
    if (step === 3 && this.step === 2) this.sweep(row);
    else this.sweeping = null;
    this.step = step;
    this.output.show(row.output, most.value, theme, "What the head hands on");
    this.total.textContent = `Σ ${percent(sum(row.weights))}`;
    this.element.dataset.output = row.output.join(" ");
    this.element.dataset.query = row.query.join(" ");
    this.reach(step, step === 4 && edits.divisor !== null);
  }

  retitle(walk, divisor, step) {
    const additive = walk.score === "additive";
    const titles = {
      key: "key",
      product: additive ? "w · tanh(query + key)" : "query × key",
      sum: "sum",
      scaled: `÷ ${divisor}`,
      score: walk.bias ? "+ position + mask" : "+ mask",
      weight: "softmax: weight",
      value: "value",
      weighted: "weight × value",
    };
    for (const [name, title] of Object.entries(titles)) {
      this.titles[name].textContent = title;
      this.titles[name].classList.toggle("lit", Boolean(NOW[step]?.includes(name)));
    }
    this.corner.textContent = walk.kind === "cross" ? "source token" : "token";
  }

  showRow(
    numbers,
    { node, pick, strips, cells, slider, weight, why, text },
    { most, theme, step, picked, reason, known },
  ) {
    const name = quoted(text);
    strips.key.show(numbers.key, most.key, theme, `Key of ${name}`);
    strips.product.show(numbers.terms, most.product, theme, `Products of ${name}`);
    strips.value.show(numbers.value, most.value, theme, `Value of ${name}`);
    const weighted = mixture([numbers.weight], [numbers.value], numbers.value.length);
    strips.weighted.show(weighted, most.value, theme, `Weight times value of ${name}`);
    cells.sum.textContent = known ? short(numbers.sum) : "–";
    cells.scaled.textContent = known ? short(numbers.scaled) : "–";
    cells.score.textContent = short(numbers.score);
    const shut = !numbers.visible;
    weight.textContent = shut ? "" : part(numbers.weight);
    why.textContent = shut ? reason : "";
    slider.value = numbers.weight;
    slider.style.setProperty("--part", numbers.weight);
    slider.setAttribute("aria-valuetext", percent(numbers.weight));
    slider.disabled = shut;
    slider.hidden = shut;
    slider.tabIndex = numbers.at === picked ? 0 : -1; // Shift and arrows go to another row
    pick.tabIndex = slider.tabIndex;
    pick.setAttribute("aria-pressed", String(numbers.at === picked));
    node.classList.toggle("picked", numbers.at === picked);
    node.classList.toggle("shut", shut && step >= 5);
    for (const key of ["sum", "scaled", "score", "weight"]) node.dataset[key] = numbers[key];
  }

  /** The products appear one after the other, and the sums grow with them; nothing moves if that is not wanted. */
  sweep(row) {
    if (still.matches) return;
    this.sweeping = row;
    this.element.classList.add("sweeping");
    const sums = new Map([...this.rows.keys()].map((at) => [at, runningSums(row.rows[at].terms)]));
    const began = performance.now();
    const frame = (now) => {
      const part = this.sweeping === row ? Math.min(1, Math.max(0, now - began) / SWEEP) : 1;
      for (const [at, sum] of this.sweeping === row ? sums : []) {
        const count = Math.floor(part * sum.length);
        this.rows.get(at).cells.sum.textContent = short(count ? sum[count - 1] : 0);
      }
      if (part < 1) requestAnimationFrame(frame);
      else this.element.classList.remove("sweeping");
    };
    requestAnimationFrame(frame);
  }

  showOthers(row, most, theme) {
    const weights = this.folded.map((at) => row.weights[at]);
    const values = this.folded.map((at) => row.rows[at].value);
    this.rest.strip.show(mixture(weights, values, row.output.length), most.value, theme, "All others together");
    this.rest.weight.textContent = percent(sum(weights));
  }

  /**
   * Columns of later steps are invisible; a narrow page shows only those of this step. With `ahead` the weights are
   * shown before their step, pale: what a divisor does is seen in them.
   */
  reach(step, ahead) {
    this.element.dataset.step = step;
    this.element.classList.toggle("ahead", ahead);
    for (const { cells } of this.rows.values()) cells.weight.inert = ahead;
    for (const { name, from, narrow } of COLUMNS) {
      for (const node of this.element.querySelectorAll(`[data-column=${name}]`)) {
        const shutter = name === "weight" && step === 5 && node.closest(".shut"); // it says why
        const early = shutter || (ahead && name === "weight");
        node.classList.toggle("later", step < from && !early && !(name === "key" && node.closest(".query-row")));
        node.classList.toggle("now", narrow.includes(step));
      }
    }
    this.output.element.classList.toggle("later", step < 8);
    this.handed.classList.toggle("later", step < 8);
    this.total.classList.toggle("later", step < 6);
  }

  /** Frames the number with this index in all strips, or none. */
  mark(index) {
    this.element.classList.toggle("marking", index !== null);
    if (index !== null) this.element.style.setProperty("--index", index);
  }
}
