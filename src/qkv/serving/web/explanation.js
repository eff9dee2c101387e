// @ts-check
// Which tokens led a fine-tuned model to its answer: the text tinted by them, and the largest shares as a list.

import { fillBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { note } from "./notices.js";
import { SignedTokens, signed, signedLegend } from "./signed_tokens.js";
import { named } from "./tokens.js";

const LISTED = 8;
const ABOUT =
  "Gradient × input: how much the score of the answer grows with each token's embedding. The shares are the sizes; " +
  "together they are 100%.";
const HINT = "Point at a token, or use the arrow keys, to see its share.";

export class Explanation {
  constructor() {
    this.text = new SignedTokens("Tokens by their part in the answer", ["share", "contribution"]);
    this.list = element("ol", { class: "bars", "aria-label": "The largest shares" });
    this.word = element("select", { id: "explained", onchange: () => this.draw() });
    const label = element("label", { for: "explained" }, "Tag of ");
    this.picking = element("p", { class: "picking-word" }, label, this.word);
    this.element = element(
      "section",
      { class: "explanation sheet", "aria-labelledby": "explanation-title", hidden: true },
      element("h2", { id: "explanation-title" }, "Which tokens led to it"),
      note(ABOUT),
      this.picking,
      signedLegend("for the answer", "against it"),
      this.text.element,
      this.list,
    );
  }

  /** Shows an explanation; `tags` are those of a tagger, which has a row for each word. */
  show(explanation, tags) {
    this.element.hidden = !explanation;
    if (!explanation) return;
    this.explanation = explanation;
    this.picking.hidden = !tags;
    const options = (tags ?? []).map(([word, tag], index) => element("option", { value: index }, `${word}: ${tag}`));
    this.word.replaceChildren(...options);
    this.draw();
  }

  draw() {
    const { tokens, contributions, shares } = this.explanation;
    const row = Number(this.word.value || 0);
    const rows = tokens.map((token, position) => {
      const value = contributions[row][position];
      const share = shares[row][position];
      const side = value < 0 ? "against" : "for";
      const facts = `${percent(share)}, ${side} the answer`;
      return { ...token, value, share, facts, cells: [percent(share), signed(value, 3)] };
    });
    this.text.show(rows, HINT);
    const sorted = [...rows].sort((one, other) => other.share - one.share);
    const others = sorted.slice(LISTED).reduce((sum, { share }) => sum + share, 0);
    fillBars(this.list, sorted.slice(0, LISTED).map(shareRow), { others });
  }
}

/** A token as a row with its share. */
function shareRow(token) {
  const { value, share } = token;
  const text = named(token);
  const shown = `${value < 0 ? "− " : ""}${percent(share)}`;
  const side = value < 0 ? "against" : "for";
  return { text, value: share, shown, name: `${quoted(text)}, ${side} the answer: ${percent(share)}` };
}
