// @ts-check
// A text as tokens, coloured by their probability; arrow keys move between them, Enter opens one.

import { element, percent } from "qkv/elements.js";
import { printable, quoted, tokenText } from "qkv/token_text.js";

// From the likeliest on; the class sets a colour, and an underline for readers who see no colours.
const STEPS = [
  [0.8, "sure", "80% and more"],
  [0.5, "likely", "50 to 80%"],
  [0.2, "open", "20 to 50%"],
  [0.05, "unlikely", "5 to 20%"],
  [0, "rare", "under 5%"],
];

export function probabilityOf({ logprob }) {
  return logprob === null || logprob === undefined ? null : Math.exp(logprob);
}

/** A token's text, or its name in the vocabulary if it has none, such as the end of text. */
export function named({ text, token, id }) {
  return text || token || `token ${id}`;
}

/** A single token with its leading spaces, so that " Paris" differs from "Paris". */
export function spaced(token) {
  return tokenText(named(token), { class: "word", title: named(token) });
}

function step(probability) {
  return probability === null ? "" : STEPS.find(([least]) => probability >= least)?.[1] ?? "rare";
}

/** The legend of the colours. */
export function tokenLegend() {
  return element(
    "p",
    { class: "token-legend" },
    "Probability of each token: ",
    ...STEPS.map(([, name, text]) => element("span", { class: `token ${name}` }, text)),
  );
}

export class Tokens {
  /** Calls `onpick(position, node)` for a token that is clicked, or opened by Enter. */
  constructor(name, onpick = null) {
    this.onpick = onpick;
    this.list = []; // {id, text, logprob, fromPrompt, chosen, differs, cut}
    this.at = 0;
    this.element = element("div", {
      class: onpick ? "tokens picking" : "tokens",
      role: "group",
      "aria-label": onpick ? `${name}. Arrow keys move from token to token, Enter opens one.` : name,
    });
    if (!onpick) return;
    this.element.addEventListener("click", (event) => {
      const node = event.target.closest(".token");
      if (node && getSelection().isCollapsed) this.pick(node);
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  show(list) {
    this.list = [];
    this.element.replaceChildren();
    this.add(list);
  }

  add(list) {
    const nodes = list.map((token, number) => this.tokenNode(token, this.list.length + number));
    this.list = [...this.list, ...list];
    this.element.append(...nodes);
    if (this.onpick && nodes.length && this.list.length === list.length) this.rove(0);
  }

  tokenNode(token, position) {
    const probability = token.fromPrompt ? null : probabilityOf(token);
    const kinds = [
      "token",
      token.fromPrompt ? "given" : step(probability),
      token.chosen ? "chosen" : "",
      token.differs ? "differs" : "",
      /^[ \t]*\n\s*$/.test(token.text) ? "break" : "",
      token.text === "" ? "nothing" : "",
      token.cut ? "over" : "",
    ];
    const text = quoted(named(token));
    const facts = [
      token.cut ? "stop sequence, not part of the text" : "",
      token.fromPrompt ? "prompt" : probability === null ? "" : percent(probability),
      token.chosen ? "chosen by you" : "",
      token.differs ? "differs" : "",
    ];
    const title = [text, facts.filter(Boolean).join(", ")].filter(Boolean).join(": ");
    const button = { role: "button", tabindex: -1, "aria-label": title, "data-position": position };
    const pickable = this.onpick ? button : {};
    const attributes = { class: kinds.filter(Boolean).join(" "), title, ...pickable };
    return element(token.differs && !this.onpick ? "mark" : "span", attributes, printable(token.text));
  }

  /** Makes one token reachable by the Tab key. */
  rove(position) {
    const { children } = this.element;
    if (children[this.at]) children[this.at].tabIndex = -1;
    this.at = Math.min(children.length - 1, Math.max(0, position));
    if (children[this.at]) children[this.at].tabIndex = 0;
    return children[this.at];
  }

  pick(node) {
    this.rove(Number(node.dataset.position));
    this.onpick(this.at, node);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.element.children.length - 1;
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last };
    if (event.key in to) this.rove(to[event.key])?.focus();
    else if (event.key === "Enter" || event.key === " ") this.pick(event.target.closest(".token"));
    else return;
    event.preventDefault();
  }

  focus(position) {
    this.rove(position)?.focus();
  }
}
