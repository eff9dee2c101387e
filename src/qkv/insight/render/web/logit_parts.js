// @ts-check
// The logit of a prediction as a sum: what each head and each feed-forward layer wrote into it.

import { barList } from "qkv/bar_list.js";
import { element } from "qkv/elements.js";
import { tokenText } from "qkv/token_text.js";

const LISTED = 10;

/**
 * @typedef {object} Position
 * @property {string} token the predicted token
 * @property {number} total its logit
 * @property {number} embedding
 * @property {number} positional
 * @property {number} bias
 * @property {(number | null)[][]} layers for each layer its heads, the bias of attention, the feed-forward layer
 */

/** A number with its sign; the minus is as wide as the plus. */
export function signed(value) {
  const digits = Math.abs(value).toFixed(2);
  return `${value < 0 ? "−" : "+"}${digits}`;
}

/**
 * The names of the columns of a layer.
 * @param {{heads: number, cross: number}} parts
 */
export function columnNames({ heads, cross }) {
  const numbers = (count) => Array.from({ length: count }, (_, head) => head);
  return [
    ...numbers(heads).map((head) => ({ short: String(head), head, name: (layer) => `head ${layer}.${head}` })),
    ...numbers(cross).map((head) => ({ short: `×${head}`, head: null, name: (layer) => `cross ${layer}.${head}` })),
    { short: "bias", head: null, name: (layer) => `bias ${layer}` },
    { short: "FF", head: null, name: (layer) => `feed-forward ${layer}` },
  ];
}

/**
 * All parts of a position's logit with their names, the largest first.
 * @param {{heads: number, cross: number, positions: Position[]}} parts
 * @param {number} at
 */
export function rankedParts(parts, at) {
  const position = parts.positions[at];
  const named = [
    { name: "embedding", value: position.embedding },
    { name: "position", value: position.positional },
    { name: "output bias", value: position.bias },
  ];
  const columns = columnNames(parts);
  position.layers.forEach((row, layer) =>
    row.forEach((value, number) => {
      const { head, name } = columns[number];
      named.push(/** @type {any} */ ({ name: name(layer), value: value ?? 0, layer, head }));
    }),
  );
  return named.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
}

export class LogitParts {
  /** Promises the parts, or null where the logits of a model are no such sum. */
  static async of(store) {
    return store.data.parts ? await store.part("parts") : null;
  }

  /** `onpick(layer, head)` opens a head. */
  constructor(onpick) {
    this.onpick = onpick;
    this.heading = element("h2");
    this.table = element("table", { class: "parts-map", role: "img" });
    this.list = element("div", { class: "parts-list" });
    this.sentence = element("p", { class: "note" });
    this.element = element(
      "section",
      { class: "logit-parts", hidden: true, "aria-label": "Parts of the logit" },
      this.heading,
      this.sentence,
      element("div", { class: "parts-pair" }, element("div", { class: "parts-scroll" }, this.table), this.list),
    );
    this.table.addEventListener("click", (event) => {
      const cell = /** @type {HTMLElement} */ (event.target).closest("[data-head]");
      if (cell) onpick(Number(cell.getAttribute("data-layer")), Number(cell.getAttribute("data-head")));
    });
  }

  /**
   * @param {{heads: number, cross: number, positions: Position[]} | null} parts
   * @param {number} at
   */
  show(parts, at) {
    const position = parts?.positions[at];
    this.element.hidden = !position;
    if (!parts || !position) return;
    const ranked = rankedParts(parts, at);
    const most = Math.abs(ranked[0].value) || 1;
    this.heading.replaceChildren("What wrote the logit of ", tokenText(position.token, { class: "word" }));
    const count = `${ranked.length} parts sum to ${signed(position.total)}`;
    const read = "blue raises it, orange lowers it. Layers down, heads across, FF is feed-forward.";
    this.sentence.textContent = `${count}: ${read}`;
    this.table.setAttribute("aria-label", `Contributions by layer and head; the largest are listed. ${count}.`);
    this.draw(parts, position, most);
    this.fill(ranked.slice(0, LISTED), most);
  }

  draw(parts, position, most) {
    const columns = columnNames(parts);
    const above = columns.map(({ short }) => element("th", {}, short));
    const rows = position.layers.map((row, layer) => {
      const cells = row.map((value, number) => {
        const { head, name } = columns[number];
        const title = `${name(layer)}: ${signed(value ?? 0)}`;
        const cell = element("td", { title, class: value < 0 ? "minus" : "plus" });
        cell.style.setProperty("--part", Math.sqrt(Math.abs(value ?? 0) / most).toFixed(3)); // small ones are visible
        if (head !== null) Object.assign(cell.dataset, { layer, head });
        return cell;
      });
      return element("tr", {}, element("th", {}, String(layer)), ...cells);
    });
    this.table.replaceChildren(element("tr", {}, element("th", {}, ""), ...above), ...rows);
  }

  fill(ranked, most) {
    const rows = ranked.map(({ name, value, layer, head }) => ({
      text: name,
      value: Math.abs(value) / most,
      shown: signed(value),
      ...(typeof head === "number"
        ? { onpick: () => this.onpick(layer, head), name: `Open ${name}, ${signed(value)}` }
        : {}),
    }));
    const list = barList(rows, { label: "The largest parts", kind: "signed" });
    ranked.forEach(({ value }, number) => list.children[number].classList.toggle("minus", value < 0));
    this.list.replaceChildren(list);
  }
}
