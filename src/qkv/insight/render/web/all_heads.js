// @ts-check
// All heads: a tile for each, by layer, by name or by how telling they are; its pattern, entropy or distance.

import { choice, element } from "qkv/elements.js";
import { countNames, fullName, ordered, patternOf, sentenceOf } from "qkv/head_patterns.js";
import { toldLeftOut } from "qkv/left_out.js";
import { onResize } from "qkv/on_resize.js";
import { drawTile } from "qkv/tile_drawing.js";
import { TileGrid } from "qkv/tile_grid.js";
/** @import { Attention } from "qkv/store.js" */
/** @import { Side } from "qkv/store.js" */

const NUMBERS = {
  entropy: ["Entropy", "bits: 0 is one token, 3 is eight tokens equally", 2, "bits"],
  distance: ["Distance", "tokens: the mean distance between a token and those it attends to", 1, "tokens"],
};
const WIDE = matchMedia("(min-width: 881px)"); // as in view.css: one head is larger beside the others
const BESIDE = 316; // pixels that it takes

export class AllHeads {
  /** @type {Attention} */
  attention;
  /** @type {Side} */
  side;

  constructor(page) {
    this.page = page;
    this.title = "All heads";
    this.pattern = choice(
      "What is shown of each head",
      [
        ["pattern", "Pattern"],
        ["entropy", "Entropy"],
        ["distance", "Distance"],
      ],
      (glance) => page.set({ glance }),
    );
    this.order = choice(
      "Order of the heads",
      [
        ["layer", "By layer"],
        ["name", "By name"],
        ["telling", "By how telling"],
      ],
      (sort) => page.set({ sort }),
    );
    this.chips = element("div", { class: "names", role: "group", "aria-label": "Heads of one name" });
    this.note = element("p", { class: "note" });
    this.scroller = element("div", { class: "scroller" });
    this.heading = element("h2");
    this.large = element("canvas", { class: "closer", "aria-hidden": "true" });
    this.sentence = element("p", { class: "says" });
    this.facts = element("p", { class: "note" });
    const open = element("button", { type: "button", onclick: () => this.open() }, "Open the heat map");
    this.element = element(
      "section",
      { class: "view" },
      element("div", { class: "line tight" }, this.pattern.element, this.order.element, this.chips, this.note),
      element(
        "div",
        { class: "beside fitted" },
        element("div", { class: "main" }, this.scroller),
        element("aside", { class: "side" }, this.heading, this.sentence, this.large, this.facts, open),
      ),
    );
    onResize(this.element, () => this.grid && this.arrange());
  }

  /** Opens the chosen head; the focus goes along, so that keys work there. */
  open(site = {}) {
    this.page.set({ ...site, view: "head", mean: null });
    this.page.view("head").focus();
  }

  show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    const glance = state.glance === "distance" && attention.distance === null ? "pattern" : state.glance;
    this.pattern.show(glance);
    this.pattern.element.lastChild.disabled = attention.distance === null;
    this.order.show(state.sort);
    this.order.element.hidden = !attention.telling;
    if (this.kind !== state.kind) this.build(attention);
    Object.assign(this, { attention, side: store.data.sides[attention.columns] });
    this.ratio = Math.min(2, Math.max(0.5, attention.shape[1] / attention.shape[0]));
    for (const part of [this.grid.element, this.large]) part.style.setProperty("--ratio", this.ratio);
    const drawn = `${store.number} ${state.kind} ${glance} ${state.without} ${colours.theme} ${colours.scale}`;
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      this.name();
      if (glance === "pattern") this.drawPatterns();
      else this.drawNumbers(glance);
    }
    this.tell(glance, state);
    this.grid.sort(ordered(attention, state.sort), state.sort !== "layer", state.only);
    for (const chip of this.chips.children) chip.setAttribute("aria-pressed", String(chip.dataset.only === state.only));
    this.arrange();
    this.choose(state);
  }

  build(attention) {
    this.kind = attention.kind;
    this.grid = new TileGrid(attention, (layer, head) => ({
      onclick: () => this.open({ layer, head }),
      onfocus: () => this.page.set({ layer, head }),
      onpointerenter: () => this.enlarge(layer, head),
      onpointerleave: () => this.enlarge(this.page.state.layer, this.page.state.head),
    }));
    this.scroller.replaceChildren(this.grid.element);
  }

  patternAt(layer, head) {
    return patternOf(this.attention, this.side, layer, head);
  }

  /** The names below the tiles, and buttons that show the heads of one name. */
  name() {
    this.grid.each((cell, layer, head) => {
      const pattern = this.patternAt(layer, head);
      cell.dataset.name = pattern?.name ?? "";
      cell.title = `Layer ${layer}, head ${head}${pattern ? `: ${fullName(pattern)}` : ""}`;
      cell.lastChild.replaceChildren(
        element("span", { class: "name" }, pattern?.short ?? ""),
        element("span", { class: "site" }, `${layer}.${head}`),
      );
    });
    const chip = ([name, count]) => {
      const pick = () => this.page.set({ only: this.page.state.only === name ? null : name });
      const number = element("span", { class: "number" }, count);
      return element("button", { type: "button", "data-only": name, onclick: pick }, `${name} `, number);
    };
    this.chips.replaceChildren(...countNames(this.attention).map(chip));
  }

  /** The head, its name and its numbers as a sentence. */
  describe(layer, head) {
    const { attention } = this;
    const pattern = this.patternAt(layer, head);
    const facts = pattern ? [fullName(pattern)] : [];
    for (const [name, [title, , digits, unit]] of Object.entries(NUMBERS)) {
      if (attention[name]) facts.push(`${String(title).toLowerCase()} ${attention[name][layer][head].toFixed(digits)} ${unit}`);
    }
    return `Layer ${layer}, head ${head}: ${facts.join(", ")}`;
  }

  /** Draws one head larger beside the others. */
  enlarge(layer, head) {
    const description = this.describe(layer, head);
    const site = `Layer ${layer}, head ${head}`;
    this.heading.textContent = site;
    this.sentence.textContent = sentenceOf(this.attention, this.patternAt(layer, head));
    this.facts.textContent = description.slice(site.length + 2).replace(/^./, (letter) => letter.toUpperCase());
    drawTile(this.large, this.page, this.kind, layer, head);
    this.page.setStatus(description);
  }

  tell(glance, state) {
    const { attention } = this;
    const long = Math.max(...attention.shape) > Math.max(...attention.overview);
    let meaning = long ? "Each dot is the largest weight among several tokens." : "Rows are queries, columns are keys.";
    if (glance !== "pattern") meaning = `${NUMBERS[glance][0]} in ${NUMBERS[glance][1]}.`;
    this.note.textContent = toldLeftOut(attention, this.side, state, true) || meaning;
  }

  drawPatterns() {
    this.grid.element.classList.remove("numbers");
    this.drawCells((cell, layer, head) => {
      drawTile(cell.firstChild, this.page, this.kind, layer, head);
      cell.style.backgroundColor = cell.style.color = "";
      cell.dataset.number = "";
    });
  }

  drawNumbers(name) {
    const { colours } = this.page;
    const digits = NUMBERS[name][2];
    const most = Math.max(1e-9, ...this.attention[name].flat());
    this.grid.element.classList.add("numbers");
    this.drawCells((cell, layer, head) => {
      const number = this.attention[name][layer][head];
      const t = number / most;
      cell.style.backgroundColor = `rgb(${colours.at(t)})`;
      cell.style.color = colours.ink(t);
      cell.dataset.number = number.toFixed(digits);
    });
  }

  drawCells(draw) {
    this.grid.each((cell, layer, head) => {
      draw(cell, layer, head);
      const off = this.page.host.off(layer, head); // a head that is switched off is crossed out
      cell.classList.toggle("crossed", off);
      cell.setAttribute("aria-label", `${this.describe(layer, head)}${off ? "; switched off" : ""}`);
    });
  }

  arrange() {
    const width = this.element.clientWidth - (WIDE.matches ? BESIDE : 0);
    if (!(width > 0)) return; // it is not visible
    const top = this.element.getBoundingClientRect().top;
    const above = this.scroller.getBoundingClientRect().top - top;
    const start = top + window.scrollY;
    const begin = start > 0.5 * window.innerHeight ? 16 : start; // further down a page, it is scrolled to
    const height = WIDE.matches ? window.innerHeight - begin - above - 20 : Infinity;
    this.grid.arrange({ width, height, ratio: this.ratio, named: Boolean(this.attention.patterns) });
  }

  /** Arrows among sorted tiles: to the left and right, and to the row above or below. */
  key({ key, shiftKey }) {
    if (!this.grid?.sorted || shiftKey || !/^Arrow/.test(key)) return false;
    const to = this.grid.next(key, this.page.state.layer, this.page.state.head);
    if (to) this.page.set({ layer: to[0], head: to[1] });
    return true;
  }

  /** Marks the chosen head; the focus moves along if it is in the table. */
  choose({ layer, head }) {
    const focused = this.grid.element.contains(document.activeElement);
    const cell = this.grid.choose(layer, head);
    if (focused) cell.focus({ preventScroll: false });
    this.enlarge(layer, head);
  }
}
