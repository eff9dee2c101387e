// @ts-check
// The end of the whole model: logits, softmax, and the draw of a token.

import { barList, left } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { drawn, fraction } from "qkv/model_walk_draw.js";
import { brief } from "qkv/model_walk_places.js";
import { quoted, tokenText } from "qkv/token_text.js";

/** The largest logits; the shortest bar is that of the smallest one listed, or 0. */
export function logitList(tokens, actual) {
  const logits = tokens.map(([, , logit]) => logit);
  const least = Math.min(0, ...logits);
  const range = Math.max(...logits) - least || 1;
  const rows = tokens.map(([text, id, logit]) => ({
    text,
    value: (logit - least) / range,
    shown: brief(logit),
    actual: id === actual,
  }));
  return barList(rows, { label: "Largest logits", kind: "logit-list" });
}

export function softmaxList(tokens, actual) {
  const rows = tokens.map(([text, id, , value]) => ({ text, value, actual: id === actual }));
  return barList(rows, {
    label: "Probabilities",
    kind: "softmax-list",
    others: left(rows.map(({ value }) => value)),
  });
}

/** All probabilities side by side, a seed, and the number that is drawn. */
export class Draw {
  constructor() {
    this.seed = 1;
    this.line = element("div", { class: "shares", role: "img" });
    this.pointer = element("span", { class: "pointer", "aria-hidden": "true", hidden: true });
    this.field = element("input", {
      type: "number",
      id: "draw-seed",
      min: 0,
      max: 999999,
      step: 1,
      value: "1",
      onchange: () => this.choose(Number(this.field.value)),
    });
    this.button = element("button", { type: "button", class: "draw", onclick: () => this.next() }, "Draw");
    this.result = element("p", { class: "draw-result", role: "status" });
    const seed = element("label", { for: "draw-seed" }, "Seed");
    this.element = element(
      "div",
      {},
      element("div", { class: "shares-box" }, this.line, this.pointer),
      element("div", { class: "draw-line" }, this.button, seed, this.field),
      this.result,
    );
  }

  show(tokens) {
    if (this.tokens === tokens) return;
    this.tokens = tokens;
    this.done = false;
    this.pointer.hidden = true;
    this.result.textContent = "";
    const rest = left(tokens.map(([, , , share]) => share)) ?? 0;
    const parts = tokens.map(([text, , , share], index) => part(tokenText(text, { class: "word" }), text, share, index));
    this.line.replaceChildren(...parts, part("others", "others", rest, 0, "rest"));
    const named = tokens.map(([text, , , share]) => `${quoted(text)} ${percent(share)}`);
    this.line.setAttribute("aria-label", `Shares of one: ${[...named, `others ${percent(rest)}`].join(", ")}`);
  }

  choose(seed) {
    if (!Number.isInteger(seed) || seed < 0) return;
    this.seed = seed;
    this.draw();
  }

  /** Draws with the seed that is shown; once it has been used, with the next one. */
  next() {
    if (this.done) this.seed += 1;
    this.draw();
  }

  draw() {
    this.done = true;
    this.field.value = String(this.seed);
    const number = fraction(this.seed);
    const index = drawn(
      this.tokens.map(([, , , share]) => share),
      number,
    );
    this.pointer.hidden = false;
    this.pointer.style.left = `${100 * number}%`;
    const what = index === null ? "one of the other tokens" : quoted(this.tokens[index][0]);
    this.result.textContent = `Seed ${this.seed} draws ${number.toFixed(4)}, which falls on ${what}.`;
    this.result.dataset.drawn = index === null ? "" : this.tokens[index][1];
    [...this.line.children].forEach((child, at) => {
      child.classList.toggle("hit", at === (index ?? this.tokens.length));
    });
  }
}

function part(text, title, share, index, kind = "") {
  const node = element("span", { class: `share ${kind}${index % 2 ? " odd" : ""}`, title: `${title}: ${percent(share)}` }, text);
  node.style.width = `${100 * share}%`;
  return node;
}
