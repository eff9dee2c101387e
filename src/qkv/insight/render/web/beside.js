// Named heads side by side, each as a heat map under its name: the same text, attended to in different ways.

import { element, percent } from "qkv/elements.js";
import { Heat } from "qkv/heat.js";
import { quoted } from "qkv/words.js";

export class Beside {
  constructor(page) {
    this.page = page;
    this.title = "Side by side";
    this.pair = element("div", { class: "pair" });
    const note = element("p", { class: "note" }, "Rows look, columns are looked at; the weights of a row sum to 100%.");
    this.element = element("section", { class: "view" }, note, this.pair);
  }

  build({ kind, names }) {
    this.kind = kind;
    this.heats = names.map(
      (name) =>
        new Heat({
          name: `${name}: rows look, columns are looked at`,
          onpick: (row) => this.page.set({ token: this.rows.piece(row) }),
          onhover: (at) => this.hover(at),
        }),
    );
    this.pair.replaceChildren(
      ...names.map((name, head) => element("div", {}, element("h2", {}, name), this.heats[head].element)),
    );
  }

  async show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    if (this.kind !== attention.kind) this.build(attention);
    Object.assign(this, this.page.names(state.kind), { names: attention.names });
    const asked = (this.asked = `${store.number} ${state.kind} ${state.layer} ${state.words}`);
    const heads = attention.names.map((_, head) => store.matrix(state.kind, state.layer, head, state.words));
    const matrices = await Promise.all(heads);
    if (this.asked !== asked) return;
    this.matrices = matrices;
    const pinned = state.token === null ? null : this.rows.of(state.token);
    matrices.forEach((matrix, head) => this.heats[head].show(matrix, this.rows, this.columns, colours, { pinned }));
    if (this.page.state === state) this.page.say(""); // the names stand above the maps
  }

  hover(at) {
    if (!at || !this.matrices) return;
    const weights = this.names.map((name, head) => `${name}, ${percent(this.matrices[head].value(at.row, at.column))}`);
    const [from, to] = [this.rows.texts[at.row], this.columns.texts[at.column]].map(quoted);
    this.page.say(`${from} → ${to}: ${weights.join("; ")}`);
    for (const heat of this.heats) heat.hover(at);
  }
}
