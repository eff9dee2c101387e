// @ts-check
// The text as tokens, shaded by how much the chosen token attends to each of them in the chosen head.

import { element, percent } from "qkv/elements.js";
import { TokenStrip } from "qkv/token_strip.js";
import { tokenText } from "qkv/token_text.js";

const NAMED = 3; // tokens in the sentence

export class AttendedStrip {
  constructor() {
    this.queries = new TokenStrip("The target: arrow keys choose a token", (token) => this.page?.set({ token }));
    const pick = (token) => this.same && this.page?.set({ token });
    this.keys = new TokenStrip("The text: arrow keys choose a token", pick);
    this.keys.element.classList.add("keys");
    for (const { element: strip } of [this.queries, this.keys]) {
      strip.tabIndex = 0;
      strip.setAttribute("role", "group");
      strip.addEventListener("keydown", (event) => this.key(event));
    }
    this.sentence = element("p", { class: "attended-sentence" });
    this.element = element(
      "section",
      { class: "attended sheet", "aria-label": "Tokens", hidden: true },
      this.queries.element,
      this.keys.element,
      this.sentence,
    );
  }

  /** Shows the state of the attention page; null for none. */
  async show(page) {
    this.page = page;
    this.element.hidden = !page || page.state.kind === null;
    if (this.element.hidden) return;
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
