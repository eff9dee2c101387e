// @ts-check
// Attention beside attribution: the weights of a head, and the gradient x input of the prediction.

import { keyBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { HeatMap } from "qkv/heat_map.js";
import { LogitParts } from "qkv/logit_parts.js";
import { TokenStrip } from "qkv/token_strip.js";
import { quoted, tokenText } from "qkv/token_text.js";
/** @import { Names } from "qkv/token_text.js" */

const LISTED = 5;

export class Attribution {
  /** @type {Names} */
  rows;
  /** @type {Names} */
  columns;

  constructor(page) {
    this.page = page;
    this.title = "Attribution";
    const pick = (row) => page.set({ token: this.rows.firstToken(row) });
    const pickToken = (token) => this.same && page.set({ token });
    const hover = (cell) => this.hover(cell);
    this.sides = ["Attention", "Attribution"].map((name) => ({
      name,
      heading: element("h2"),
      list: element("div"),
      map: new HeatMap({ name: `${name}: rows and columns are tokens`, onpick: pick, onhover: hover }),
      strip: new TokenStrip(`${name}: the text shaded for the chosen token`, pickToken),
    }));
    this.about = element("p", { class: "note" });
    this.parts = new LogitParts((layer, head) => page.set({ view: "head", layer, head, ...this.kind }));
    this.element = element(
      "section",
      { class: "view" },
      this.about,
      element(
        "div",
        { class: "pair" },
        ...this.sides.map(({ heading, strip, list, map }) =>
          element("div", {}, heading, strip.element, list, map.element),
        ),
      ),
      this.parts.element,
    );
  }

  async show(state) {
    const { store, colours } = this.page;
    const { attribution, attention } = store.data;
    // attention between the same tokens, of the chosen kind if possible
    const alike = ({ rows, columns }) => rows === attribution.rows && columns === attribution.columns;
    const chosen = store.attention(state.kind);
    const compared = chosen && alike(chosen) ? chosen : attention.find(alike);
    const names = this.page.namesOf(attribution);
    Object.assign(this, names);
    this.same = attribution.rows === attribution.columns;
    const request = (this.request = `${store.number} ${compared?.kind} ${state.layer} ${state.head} ${state.words}`);
    const layer = Math.min(state.layer, (compared?.depth ?? 1) - 1);
    const matrices = await Promise.all([
      compared ? store.matrix(compared.kind, layer, state.head, state.words) : null,
      store.attribution(state.words),
    ]);
    const parts = await LogitParts.of(store);
    if (this.request !== request) return;
    matrices[0] ??= compared && !state.words ? store.coarse(compared.kind, layer, state.head) : null;
    const row = state.token === null ? this.rows.count - 1 : this.rows.indexOf(state.token);
    this.matrices = matrices;
    this.row = row;
    this.kind = parts?.cross ? { kind: "decoder" } : {}; // the heads of a translator are those of its decoder
    this.parts.show(parts, this.rows.firstToken(row));
    this.about.replaceChildren(
      "For ",
      tokenText(this.rows.texts[row], { class: "word" }),
      ": the attention weights of a head, and the attribution of the prediction to each token (gradient × input).",
    );
    const titles = [
      compared
        ? `Attention: ${attention.length > 1 ? `${compared.kind}, ` : ""}layer ${layer}, head ${state.head}`
        : "No attention between these tokens",
      "Attribution: gradient × input",
    ];
    if (this.page.state === state) this.page.setStatus(this.sentence(row));
    this.sides.forEach(({ heading, map, strip, list }, number) => {
      heading.textContent = titles[number];
      strip.show(this.columns.side, state.words);
      strip.mark(this.same ? row : null);
      strip.reveal();
      const matrix = matrices[number];
      map.element.hidden = !matrix;
      const listed = matrix?.exact ? [keyBars(this.columns, matrix.strongest(row, LISTED), LISTED)] : [];
      list.replaceChildren(...listed);
      strip.shade(matrix ? matrix.row(row) : null, colours);
      if (matrix)
        map.show(matrix, this.rows, this.columns, colours, { pinned: row, causal: Boolean(compared?.causal) });
    });
  }

  /** The token with the largest attention, and the one with the largest attribution. */
  sentence(row) {
    const parts = this.matrices.map((matrix, number) => {
      const [most] = matrix?.exact ? matrix.strongest(row, 1) : [];
      const name = this.sides[number].name.toLowerCase();
      return most && `largest ${name}: ${quoted(this.columns.texts[most[0]])}, ${percent(most[1])}`;
    });
    return `${quoted(this.rows.texts[row])}: ${parts.filter(Boolean).join("; ")}`;
  }

  hover(cell) {
    if (!cell || !this.matrices) return;
    const parts = this.matrices.map(
      (matrix, number) =>
        matrix && `${this.sides[number].name.toLowerCase()} ${percent(matrix.value(cell.row, cell.column))}`,
    );
    const [from, to] = [this.rows.texts[cell.row], this.columns.texts[cell.column]].map(quoted);
    this.page.setStatus(`${from} → ${to}: ${parts.filter(Boolean).join(", ")}`);
    for (const { map } of this.sides) map.hover(cell);
  }
}
