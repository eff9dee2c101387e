// @ts-check
// Named heads side by side, each as a heat map under its name: the same text with different attention.

import { element, percent } from "qkv/elements.js";
import { HeatMap } from "qkv/heat_map.js";
import { quoted } from "qkv/token_text.js";
/** @import { Names } from "qkv/token_text.js" */

export class NamedHeads {
  /** @type {Names} */
  rows;
  /** @type {Names} */
  columns;
  /** @type {string[]} */
  names;

  constructor(page) {
    this.page = page;
    this.title = "Side by side";
    this.explained = "head";
    this.pair = element("div", { class: "pair" });
    const text = "Rows are queries, columns are keys; the weights of a row sum to 100%.";
    this.element = element("section", { class: "view" }, element("p", { class: "note" }, text), this.pair);
  }

  build({ kind, names }) {
    this.kind = kind;
    this.maps = names.map(
      (name) =>
        new HeatMap({
          name: `${name}: rows are queries, columns are keys`,
          onpick: (row) => this.page.set({ token: this.rows.firstToken(row) }),
          onhover: (cell) => this.hover(cell),
        }),
    );
    this.pair.replaceChildren(
      ...names.map((name, head) => element("div", {}, element("h2", {}, name), this.maps[head].element)),
    );
  }

  async show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    if (this.kind !== attention.kind) this.build(attention);
    Object.assign(this, this.page.names(state.kind), { names: attention.names });
    const request = (this.request = `${store.number} ${state.kind} ${state.layer} ${state.words}`);
    const heads = attention.names.map((_, head) => store.matrix(state.kind, state.layer, head, state.words));
    const matrices = await Promise.all(heads);
    if (this.request !== request) return;
    this.matrices = matrices;
    const pinned = state.token === null ? null : this.rows.indexOf(state.token);
    matrices.forEach((matrix, head) => this.maps[head].show(matrix, this.rows, this.columns, colours, { pinned }));
    if (this.page.state === state) this.page.setStatus(""); // the names are above the maps
  }

  hover(cell) {
    if (!cell || !this.matrices) return;
    const { row, column } = cell;
    const weights = this.names.map((name, head) => `${name}, ${percent(this.matrices[head].value(row, column))}`);
    const [from, to] = [this.rows.texts[row], this.columns.texts[column]].map(quoted);
    this.page.setStatus(`${from} → ${to}: ${weights.join("; ")}`);
    for (const map of this.maps) map.hover(cell);
  }
}
