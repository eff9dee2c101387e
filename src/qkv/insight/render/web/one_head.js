// @ts-check
// One head: its heat map, and beside it the keys that the chosen query attends to.

import { keyBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { patternOf, sentenceOf } from "qkv/head_patterns.js";
import { HeatMap } from "qkv/heat_map.js";
import { leftColumns, toldLeftOut } from "qkv/left_out.js";
import { SecondHead } from "qkv/second_head.js";
import { shownMatrix } from "qkv/shown_matrix.js";
import { TokenStrip } from "qkv/token_strip.js";
import { quoted, tokenText } from "qkv/token_text.js";
/** @import { Attention } from "qkv/store.js" */
/** @import { Names } from "qkv/token_text.js" */

const LISTED = 8;
const WIDE = matchMedia("(min-width: 881px)"); // as in view.css: the list is beside the map
const BESIDE = 340; // pixels that the list takes
const APART = 32; // pixels between two maps
const FOLLOWED = 600; // tokens up to which the shades of the text follow the pointer

/** Why the weights of a layer are missing, and the command that writes a page with them. */
export function missing(attention, layer) {
  const complete = attention.layers.length ? `layer ${attention.layers.join(", ")}` : "no layer";
  return [
    `This page has all weights of ${complete}; layer ${layer} is drawn from the overview, `,
    "where each cell is the maximum of several. To write a page with all of its weights: ",
    element("code", {}, `qkv look … --layer ${layer} --out look.html`),
  ];
}

export class OneHead {
  /** @type {Names} */
  rows;
  /** @type {Attention} */
  attention;
  /** @type {Names} */
  columns;

  constructor(page) {
    this.page = page;
    this.title = "Heat map";
    this.map = new HeatMap({
      name: "Attention weights of one head: rows are queries, columns are keys",
      onhover: (cell) => this.hover(cell),
      room: () => this.room(),
      onpick: (row) => {
        const token = this.rows.firstToken(row);
        page.set({ token: page.state.token === token ? null : token });
      },
    });
    this.busy = element("p", { class: "busy", hidden: true }, "Loading the weights …");
    this.note = element("p", { class: "note wide", hidden: true });
    this.second = new SecondHead(
      page,
      (cell) => this.hover(cell),
      () => this.room(),
    );
    this.first = element("h2", { class: "second-line" });
    this.says = element("p", { class: "says" });
    this.told = element("p", { class: "note" });
    this.sums = element("button", { type: "button", class: "switch", onclick: () => this.flip("sums") }, "Sums");
    this.compare = element("button", { type: "button", class: "switch", onclick: () => this.pair() }, "Compare");
    this.heading = element("h2");
    this.list = element("div");
    this.strip = new TokenStrip("The keys, shaded by weight", (token) => this.pick(token));
    this.element = element(
      "section",
      { class: "view beside fitted" },
      this.note,
      element(
        "div",
        { class: "main" },
        this.busy,
        element("div", { class: "maps" }, element("div", {}, this.first, this.map.element), this.second.element),
      ),
      element(
        "aside",
        { class: "side" },
        this.says,
        this.told,
        element("div", { class: "tools-line" }, this.sums, this.compare),
        this.heading,
        this.list,
        this.strip.element,
      ),
    );
  }

  /** The width of a map: beside the list, or half of the view for two maps. */
  room() {
    const width = this.element.clientWidth;
    if (!WIDE.matches) return width;
    return this.page.state.compare ? (width - APART) / 2 : width - BESIDE;
  }

  /** Two maps are of one size, once everything above them is there. */
  arrangeBoth({ compare }) {
    if (compare) for (const map of [this.map, this.second.map]) map.arrange();
  }

  focus() {
    this.map.canvas.focus({ preventScroll: true });
  }

  flip(name) {
    this.page.set({ [name]: !this.page.state[name] });
  }

  /** Shows a second head beside this one, at first the next of the telling ones; or removes it. */
  pair() {
    const { layer, head, compare } = this.page.state;
    const { telling, heads } = this.second.store.attention(this.page.state.kind);
    const taken = this.page.other ? -1 : layer * heads + head;
    const other = (telling ?? []).find((number) => number !== taken) ?? 0;
    this.page.set({ compare: compare ? null : [Math.floor(other / heads), other % heads] });
  }

  /** What the head does, what is left out, and the state of the buttons. */
  tell(state) {
    const { attention, columns } = this;
    const pattern = state.mean ? null : patternOf(attention, columns.side, state.layer, state.head);
    this.says.textContent = sentenceOf(attention, pattern);
    this.told.textContent = toldLeftOut(attention, columns.side, state);
    this.told.hidden = !this.told.textContent;
    this.sums.setAttribute("aria-pressed", String(state.sums));
    this.compare.setAttribute("aria-pressed", String(state.compare !== null));
    this.compare.hidden = !this.page.other && (Boolean(attention.names) || attention.depth * attention.heads === 1);
    this.element.classList.toggle("paired", state.compare !== null);
    this.first.hidden = state.compare === null;
    this.first.textContent = this.page.other ? `${this.page.store.data.model}: ${this.page.site()}` : this.page.site();
  }

  pick(token) {
    if (this.rows.side === this.columns.side) this.page.set({ token });
  }

  async show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    const { rows, columns } = this.page.names(state.kind);
    Object.assign(this, { attention, rows, columns });
    this.tell(state);
    const full = attention.layers.includes(state.layer) || state.mean === "all";
    this.note.hidden = full;
    if (!full) this.note.replaceChildren(...missing(attention, state.layer));
    this.strip.show(columns.side, state.words);
    const { kind, layer, head, words, mean, without } = state;
    const request = (this.request = JSON.stringify([store.number, kind, layer, head, words, mean, without]));
    const left = leftColumns(attention, columns, state);
    const draw = (matrix) => {
      this.matrix = matrix;
      const pinned = state.token === null ? null : rows.indexOf(state.token);
      const sums = state.sums && matrix.exact && !(state.compare && state.difference); // two maps are of one size
      const shown = { pinned, causal: attention.causal, left, sums };
      this.map.show(matrix, rows, columns, colours, shown);
      this.showRow();
      return this.second.show(state, matrix, { rows, columns, ...shown }).then(() => this.arrangeBoth(state));
    };
    const coming = shownMatrix(this.page, state);
    const first = await Promise.race([coming, new Promise((late) => setTimeout(late, 60, "late"))]);
    if (this.request !== request) return;
    if (first && first !== "late") {
      this.busy.hidden = true;
      await draw(first);
      return;
    }
    this.busy.hidden = !full;
    draw(this.page.coarse(state)); // until the weights are loaded
    const matrix = await coming;
    if (this.request !== request) return;
    this.busy.hidden = true;
    if (matrix) await draw(matrix);
  }

  hover(cell) {
    const exists = cell && cell.row < this.rows.count && cell.column < this.columns.count;
    this.hovered = exists ? cell : null;
    this.showRow();
    if (exists) this.page.setStatus(`${this.page.site()}: ${this.sentence(cell)}`);
  }

  sentence({ row, column }) {
    const weight = percent(this.matrix.value(row, column));
    const hidden = this.attention.causal && column > row;
    const shown = hidden ? "hidden by the causal mask" : this.matrix.exact ? weight : `up to ${weight}`;
    const second = hidden ? "" : this.second.told({ row, column });
    return `${quoted(this.rows.texts[row])} → ${quoted(this.columns.texts[column])}: ${shown}${second}`;
  }

  /** Shows the weights of one query: the pinned one, else the one under the pointer, else the last. */
  showRow() {
    if (!this.matrix) return;
    const { state, colours } = this.page;
    const pinned = state.token === null ? null : this.rows.indexOf(state.token);
    const row = pinned ?? this.hovered?.row ?? this.rows.count - 1;
    const key = `${this.request} ${row} ${this.matrix.exact} ${this.matrix.code.name} ${colours.theme} ${colours.scale}`;
    if (this.shownRow === key) return;
    this.shownRow = key;
    this.heading.replaceChildren(tokenText(this.rows.texts[row], { class: "word" }), " attends to");
    const { exact } = this.matrix;
    const strongest = exact ? this.matrix.strongest(row, LISTED) : [];
    this.list.replaceChildren(
      keyBars(this.columns, strongest, LISTED),
      ...(exact ? [] : [element("p", { class: "note" }, "The overview has no weights of single tokens.")]),
    );
    if (this.hovered && pinned === null && this.columns.count > FOLLOWED) return;
    this.strip.shade(exact ? this.matrix.row(row) : null, colours);
    this.strip.mark(this.rows.side === this.columns.side ? row : null);
    this.strip.reveal();
  }

  /** Keys of the heat map, wherever the focus is: arrows with Shift, plus, minus and 0. */
  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.shiftKey && steps[event.key]) this.map.step(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.map.viewport.zoom(1.4);
    else if (event.key === "-") this.map.viewport.zoom(1 / 1.4);
    else if (event.key === "0") this.map.viewport.fit();
    else if (event.key === "Enter" && event.target === this.map.canvas && this.hovered) {
      this.page.set({ token: this.rows.firstToken(this.hovered.row) });
    } else return false;
    return true;
  }
}
