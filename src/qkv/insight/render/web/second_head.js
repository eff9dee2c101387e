// @ts-check
// A second head beside the first, or the difference of both.

import { choice, element, percent } from "qkv/elements.js";
import { patternOf, sentenceOf } from "qkv/head_patterns.js";
import { HeatMap } from "qkv/heat_map.js";
import { Matrix } from "qkv/matrix.js";
import { shownMatrix } from "qkv/shown_matrix.js";

const HALF = 32767;
const SIGNED = { name: "signed16", steps: 2 * HALF, value: (number) => (number - HALF) / HALF };
const LONG = 256; // tokens; beyond, a cell of the map stands for several, which have no one difference

/** The first matrix minus the second, from -1 to 1. */
export function differenceOf(one, other) {
  const { rows, columns } = one;
  const numbers = new Uint16Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const [first, second] = [one.row(row), other.row(row)];
    for (let column = 0; column < columns; column++) {
      const part = Math.max(-1, Math.min(1, first[column] - second[column]));
      numbers[row * columns + column] = Math.round(HALF + HALF * part);
    }
  }
  return new Matrix(rows, columns, { rows, columns, numbers }, SIGNED);
}

/** Colours of a difference: blue where the first head gives more weight, orange where the second does. */
class DifferenceColours {
  constructor(theme) {
    this.theme = theme;
    this.rampPosition = (weight) => weight;
  }

  at(part) {
    const dark = this.theme === "dark";
    const none = dark ? [28, 31, 38] : [255, 255, 255];
    const far = part > 0 ? (dark ? [124, 196, 245] : [10, 98, 168]) : dark ? [242, 166, 90] : [176, 76, 0];
    const t = Math.sqrt(Math.abs(part));
    return none.map((channel, index) => Math.round(channel + t * (far[index] - channel)));
  }

  table(code) {
    return Uint32Array.from({ length: code.steps + 1 }, (_, number) => {
      const [red, green, blue] = this.at(code.value(number));
      return (255 << 24) | (blue << 16) | (green << 8) | red;
    });
  }

  ink(part) {
    const far = Math.abs(part) > 0.3;
    return (this.theme === "dark") === far ? "#101216" : this.theme === "dark" ? "#fff" : far ? "#fff" : "#101216";
  }
}

export class SecondHead {
  /** Calls `onhover({row, column})` with a cell of the second map. */
  constructor(page, onhover, room) {
    this.page = page;
    this.layer = this.select("Layer of the second head", 0);
    this.head = this.select("Second head", 1);
    this.what = choice(
      "Second map",
      [
        [false, "Second head"],
        [true, "Difference"],
      ],
      (difference) => page.set({ difference }),
    );
    this.map = new HeatMap({ name: "The second head: rows are queries, columns are keys", onhover, room });
    this.note = element("p", { class: "note" });
    const model = page.other ? [element("strong", {}, page.other.data.model)] : [];
    this.line = element("div", { class: "second-line" }, ...model, this.layer, this.head, this.what.element);
    this.element = element("div", { hidden: true });
    this.matrix = null;
  }

  select(name, index) {
    const pick = () => {
      const site = [...this.page.state.compare];
      site[index] = node.selectedIndex;
      this.page.set({ compare: site });
    };
    const node = element("select", { "aria-label": name, onchange: pick });
    return node;
  }

  options(node, name, count, chosen) {
    if (node.options.length !== count) {
      node.replaceChildren(...Array.from({ length: count }, (_, number) => element("option", {}, `${name} ${number}`)));
    }
    node.selectedIndex = chosen;
  }

  /** The store of the second head: that of another model, if the page has one. */
  get store() {
    return this.page.other ?? this.page.store;
  }

  async show(state, first, { rows, columns, pinned, causal, left, sums }) {
    this.element.hidden = state.compare === null;
    this.element.replaceChildren(...(state.compare ? [this.line, this.map.element, this.note] : []));
    if (state.compare === null) return;
    const attention = this.store.attention(state.kind);
    const [layer, head] = state.compare;
    this.options(this.layer, "layer", attention.depth, layer);
    this.options(this.head, "head", attention.heads, head);
    const long = Math.max(...attention.shape) > LONG;
    const difference = state.difference && !long;
    this.what.show(difference);
    this.what.element.lastChild.disabled = long;
    const second = await shownMatrix(this.page, state, state.compare, this.store);
    if (this.page.state !== state) return;
    this.matrix = second;
    const { colours } = this.page;
    const side = this.store.data.sides[attention.columns];
    const says = sentenceOf(attention, patternOf(attention, side, layer, head));
    this.note.textContent = second ? says : `The page has no weights of layer ${layer}.`;
    if (!second) return;
    if (!difference) this.map.show(second, rows, columns, colours, { pinned, causal, left, sums });
    else {
      this.note.textContent = "Blue: the first gives more weight. Orange: the second does.";
      const shown = differenceOf(first, second);
      this.map.show(shown, rows, columns, new DifferenceColours(colours.theme), { pinned, causal, left });
    }
  }

  /** The weight of the second head in a cell, for a sentence. */
  told({ row, column }) {
    if (!this.matrix || this.page.state.compare === null) return "";
    const model = this.page.other ? `${this.page.other.data.model}, ` : "";
    const [layer, head] = this.page.state.compare;
    return `; ${model}layer ${layer}, head ${head}: ${percent(this.matrix.value(row, column))}`;
  }
}
