// @ts-check
// The text as tokens, shaded by how much the chosen token attends to each of them in the chosen head.

import { element, percent } from "qkv/elements.js";
import { TokenStrip } from "qkv/token_strip.js";
import { tokenText } from "qkv/token_text.js";

const NAMED = 3; // tokens in the sentence

export class AttendedStrip {
  constructor() {
    const pick = (token) => this.same && this.page?.set({ token });
    this.queries = new TokenStrip("The target", (token) => this.page?.set({ token }));
    this.keys = new TokenStrip("The text", pick);
    this.sentence = element("p", { class: "attended-sentence" });
    const about = "Tokens. Arrow keys choose one.";
    const strips = element(
      "div",
      { class: "attended-strips", role: "group", "aria-label": about, tabindex: 0 },
      this.queries.element,
      this.keys.element,
    );
    strips.addEventListener("keydown", (event) => this.key(event));
    this.keys.element.classList.add("keys");
    this.element = element("section", { class: "attended sheet", "aria-label": "Text" }, strips, this.sentence);
  }

  /** Shows nothing, but keeps its place. */
  clear() {
    this.page = this.request = null;
    this.keys.element.replaceChildren();
    this.keys.side = null;
    this.queries.element.hidden = true;
    this.sentence.replaceChildren();
    delete this.element.dataset.shown;
  }

  /** Shows the state of the attention page. */
  async show(page) {
    this.page = page;
    if (page.state.kind === null) return;
    const { store, state, colours } = page;
    const { kind, layer, head } = state;
    const request = (this.request = {});
    const matrix = await store.matrix(kind, layer, head).catch(() => null);
    if (this.request !== request || page.store !== store) return;
    const { rows, columns } = page.namesOf(store.attention(kind), false);
    this.same = rows.side === columns.side;
    const row = Math.min(state.token ?? rows.count - 1, rows.count - 1);
    this.queries.element.hidden = this.same;
    if (!this.same) {
      this.queries.show(rows.side);
      this.queries.mark(row);
    }
    this.keys.show(columns.side);
    this.keys.mark(this.same ? row : null);
    const weights = matrix?.exact ? matrix.row(row) : null;
    this.keys.shade(weights, colours);
    this.keys.reveal();
    this.tell(rows.texts[row], columns, weights && matrix.strongest(row, NAMED));
    this.element.dataset.shown = `${kind} ${layer} ${head} ${row}`;
  }

  /** Arrow keys choose another token. */
  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.page?.step(by);
  }

  /** Layer 13, head 8: “it” attends to “cat” 80.1%, … */
  tell(token, columns, strongest) {
    const named = (text) => tokenText(text, { class: "word" });
    const parts = (strongest ?? []).flatMap(([column, weight], rank) => [
      rank ? ", " : " ",
      named(columns.texts[column]),
      ` ${percent(weight)}`,
    ]);
    this.sentence.replaceChildren(`${this.page.site()}: `, named(token), " attends to", ...parts);
  }
}
