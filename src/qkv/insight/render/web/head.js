// One head: its heat map, and beside it what the chosen word looks at.

import { element, percent } from "qkv/elements.js";
import { Heat } from "qkv/heat.js";
import { Strip } from "qkv/strip.js";
import { quoted, word } from "qkv/words.js";

const LISTED = 8;
const WIDE = matchMedia("(min-width: 881px)"); // as in view.css: the list stands beside the map
const BESIDE = 340; // and takes so many pixels
const FOLLOWED = 600; // words up to which the shades of the text follow the mouse

/** Words with bars. `rows` are triples of a text, a weight, and whether it is the one that is really there. */
export function bars(rows) {
  const items = rows.map(([text, weight, real]) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", weight);
    const attributes = real ? { class: "real", "aria-current": "true" } : {};
    return element(
      "li",
      attributes,
      word(text, { class: "word", title: text }),
      element("span", { class: "number" }, percent(weight)),
      bar,
    );
  });
  return element("ol", { class: "bars" }, ...items);
}

/** What a command would write the layer that this page has not. */
export function missing(attention, layer) {
  const kept = attention.layers.length ? `layer ${attention.layers.join(", ")}` : "no layer";
  return [
    `This page holds every weight of ${kept}; layer ${layer} is drawn from the overview, `,
    "where each cell is the highest of several. To write it in full: ",
    element("code", {}, `qkv look … --layer ${layer} --out look.html`),
  ];
}

export class Head {
  constructor(page) {
    this.page = page;
    this.title = "Heat map";
    this.heat = new Heat({
      name: "Weights of one head: rows look, columns are looked at",
      onhover: (at) => this.hover(at),
      room: () => this.element.clientWidth - (WIDE.matches ? BESIDE : 0),
      onpick: (row) => {
        const token = this.rows.piece(row);
        page.set({ token: page.state.token === token ? null : token });
      },
    });
    this.busy = element("p", { class: "busy", hidden: true }, "Reading the weights …");
    this.note = element("p", { class: "note wide", hidden: true });
    this.heading = element("h2");
    this.list = element("div");
    this.strip = new Strip("The text that is looked at, shaded by weight", (token) => this.pick(token));
    this.element = element(
      "section",
      { class: "view beside fitted" },
      this.note,
      element("div", { class: "main" }, this.busy, this.heat.element),
      element("aside", { class: "side" }, this.heading, this.list, this.strip.element),
    );
  }

  pick(token) {
    if (this.rows.side === this.columns.side) this.page.set({ token });
  }

  async show(state) {
    const { store, colours } = this.page;
    const attention = store.attention(state.kind);
    const { rows, columns } = this.page.names(state.kind);
    Object.assign(this, { attention, rows, columns });
    const full = attention.layers.includes(state.layer);
    this.note.hidden = full;
    if (!full) this.note.replaceChildren(...missing(attention, state.layer));
    this.strip.show(columns.side, state.words);
    const asked = (this.asked = `${store.number} ${state.kind} ${state.layer} ${state.head} ${state.words}`);
    const drawn = (matrix) => {
      this.matrix = matrix;
      const pinned = state.token === null ? null : rows.of(state.token);
      this.heat.show(matrix, rows, columns, colours, { pinned, causal: attention.causal });
      this.tell();
    };
    const coming = store.matrix(state.kind, state.layer, state.head, state.words);
    const first = await Promise.race([coming, new Promise((late) => setTimeout(late, 60, "late"))]);
    if (this.asked !== asked) return;
    if (first && first !== "late") {
      this.busy.hidden = true;
      drawn(first);
      return;
    }
    this.busy.hidden = !full;
    drawn(this.page.coarse(state)); // something to see until the weights are there
    const matrix = await coming;
    if (this.asked !== asked) return;
    this.busy.hidden = true;
    if (matrix) drawn(matrix);
  }

  hover(at) {
    const there = at && at.row < this.rows.count && at.column < this.columns.count; // the text may be shorter by now
    this.hovered = there ? at : null;
    this.tell();
    if (there) this.page.say(`${this.page.place()}: ${this.sentence(at)}`);
  }

  sentence({ row, column }) {
    const weight = percent(this.matrix.value(row, column));
    const hidden = this.attention.causal && column > row;
    const said = hidden ? "hidden by the causal mask" : this.matrix.exact ? weight : `up to ${weight}`;
    return `${quoted(this.rows.texts[row])} → ${quoted(this.columns.texts[column])}: ${said}`;
  }

  /** The list and the shades: of the pinned row, else of the one under the mouse, else of the last. */
  tell() {
    if (!this.matrix) return;
    const { state, colours } = this.page;
    const pinned = state.token === null ? null : this.rows.of(state.token);
    const row = pinned ?? this.hovered?.row ?? this.rows.count - 1;
    const key = `${this.asked} ${row} ${this.matrix.exact} ${this.matrix.code.name} ${colours.theme} ${colours.scale}`;
    if (this.told === key) return;
    this.told = key;
    this.heading.replaceChildren(word(this.rows.texts[row], { class: "word" }), " looks at");
    const { exact } = this.matrix;
    const strongest = exact ? this.matrix.strongest(row, LISTED) : [];
    this.list.replaceChildren(
      bars(strongest.map(([column, weight]) => [this.columns.texts[column], weight, false])),
      ...(exact ? [] : [element("p", { class: "note" }, "The overview has no weights of single words.")]),
    );
    if (this.hovered && pinned === null && this.columns.count > FOLLOWED) return;
    this.strip.shade(exact ? this.matrix.row(row) : null, colours);
    this.strip.mark(this.rows.side === this.columns.side ? row : null);
    this.strip.reveal();
  }

  /** Keys of the heat map, wherever the focus is: the arrows with Shift, plus, minus and 0. */
  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.shiftKey && steps[event.key]) this.heat.step(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.heat.sight.zoom(1.4);
    else if (event.key === "-") this.heat.sight.zoom(1 / 1.4);
    else if (event.key === "0") this.heat.sight.fit();
    else if (event.key === "Enter" && event.target === this.heat.canvas && this.hovered) {
      this.page.set({ token: this.rows.piece(this.hovered.row) });
    } else return false;
    return true;
  }
}
