// Attention beside attribution: where a head looked, and what the prediction owes to each word.

import { element, percent } from "qkv/elements.js";
import { Heat } from "qkv/heat.js";
import { Strip } from "qkv/strip.js";
import { quoted, word } from "qkv/words.js";

export class Compare {
  constructor(page) {
    this.page = page;
    this.title = "Attribution";
    const pick = (row) => page.set({ token: this.rows.piece(row) });
    this.sides = ["Attention", "Attribution"].map((name) => ({
      name,
      heading: element("h2"),
      heat: new Heat({ name: `${name}: rows and columns are words`, onpick: pick, onhover: (at) => this.hover(at) }),
      strip: new Strip(`${name}: the text shaded for the chosen word`, (token) => this.same && page.set({ token })),
    }));
    this.about = element("p", { class: "note" });
    this.element = element(
      "section",
      { class: "view" },
      this.about,
      element(
        "div",
        { class: "pair" },
        ...this.sides.map(({ heading, strip, heat }) => element("div", {}, heading, strip.element, heat.element)),
      ),
    );
  }

  async show(state) {
    const { store, colours } = this.page;
    const { attribution, attention } = store.data;
    // the attention that runs between the same words, the chosen kind if it does
    const alike = (each) => each.rows === attribution.rows && each.columns === attribution.columns;
    const chosen = store.attention(state.kind);
    const compared = chosen && alike(chosen) ? chosen : attention.find(alike);
    const names = this.page.namesOf(attribution);
    Object.assign(this, names);
    this.same = attribution.rows === attribution.columns;
    const asked = (this.asked = `${store.number} ${compared?.kind} ${state.layer} ${state.head} ${state.words}`);
    const layer = Math.min(state.layer, (compared?.depth ?? 1) - 1);
    const matrices = await Promise.all([
      compared ? store.matrix(compared.kind, layer, state.head, state.words) : null,
      store.attribution(state.words),
    ]);
    if (this.asked !== asked) return;
    matrices[0] ??= compared && !state.words ? store.coarse(compared.kind, layer, state.head) : null;
    const row = state.token === null ? this.rows.count - 1 : this.rows.of(state.token);
    this.matrices = matrices;
    this.row = row;
    this.about.replaceChildren(
      "For ",
      word(this.rows.texts[row], { class: "word" }),
      ": where the head looks, and what the prediction there owes to each word (gradient × input). ",
      "The two need not agree.",
    );
    const titles = [
      compared
        ? `Attention: ${attention.length > 1 ? `${compared.kind}, ` : ""}layer ${layer}, head ${state.head}`
        : "No attention between these words",
      "Attribution: gradient × input",
    ];
    if (this.page.state === state) this.page.say(this.sentence(row));
    this.sides.forEach(({ heading, heat, strip }, number) => {
      heading.textContent = titles[number];
      strip.show(this.columns.side, state.words);
      strip.mark(this.same ? row : null);
      strip.reveal();
      const matrix = matrices[number];
      heat.element.hidden = !matrix;
      strip.shade(matrix ? matrix.row(row) : null, colours);
      if (matrix)
        heat.show(matrix, this.rows, this.columns, colours, { pinned: row, causal: Boolean(compared?.causal) });
    });
  }

  /** What both find most important for a word. */
  sentence(row) {
    const said = this.matrices.map((matrix, number) => {
      const [most] = matrix?.exact ? matrix.strongest(row, 1) : [];
      const name = this.sides[number].name.toLowerCase();
      return most && `most ${name} to ${quoted(this.columns.texts[most[0]])}, ${percent(most[1])}`;
    });
    return `${quoted(this.rows.texts[row])}: ${said.filter(Boolean).join("; ")}`;
  }

  hover(at) {
    if (!at || !this.matrices) return;
    const said = this.matrices.map(
      (matrix, number) =>
        matrix && `${this.sides[number].name.toLowerCase()} ${percent(matrix.value(at.row, at.column))}`,
    );
    const [from, to] = [this.rows.texts[at.row], this.columns.texts[at.column]].map(quoted);
    this.page.say(`${from} → ${to}: ${said.filter(Boolean).join(", ")}`);
    for (const { heat } of this.sides) heat.hover(at);
  }
}
