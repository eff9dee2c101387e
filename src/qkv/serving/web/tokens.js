// A text as its tokens, coloured by how likely the model found each; arrows walk through them, Enter opens one.

import { element, percent } from "qkv/elements.js";
import { quoted, running, visible } from "qkv/words.js";

// From the likeliest on; the class colours, and underlines for eyes that see no colours.
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

/** A token's text; what has none, such as the end, by its name in the vocabulary. */
export function named({ text, token, id }) {
  return text || token || `token ${id}`;
}

/** A token where it stands alone: the spaces that it begins with are seen, so that " Paris" is not "Paris". */
export function spaced(token) {
  const text = named(token);
  const [, spaces, rest] = /^( *)([^]*)$/.exec(text);
  const attributes = { class: "word", title: text };
  if (!spaces || !rest) return element("bdi", attributes, visible(text));
  return element("bdi", attributes, element("span", { class: "space" }, "␣".repeat(spaces.length)), visible(rest));
}

function step(probability) {
  return probability === null ? "" : STEPS.find(([least]) => probability >= least)?.[1] ?? "rare";
}

/** What the colours mean. */
export function tokenLegend() {
  return element(
    "p",
    { class: "token-legend" },
    "How likely the model found each token: ",
    ...STEPS.map(([, name, text]) => element("span", { class: `token ${name}` }, text)),
  );
}

export class Tokens {
  /** `onpick(place, made)` is told which one was clicked, or opened by Enter. */
  constructor(name, onpick = null) {
    this.onpick = onpick;
    this.list = []; // {id, text, logprob, given, chosen, differs}
    this.at = 0;
    this.element = element("div", {
      class: onpick ? "tokens picking" : "tokens",
      role: "group",
      "aria-label": onpick ? `${name}. Arrow keys go from token to token, Enter opens one.` : name,
    });
    if (!onpick) return;
    this.element.addEventListener("click", (event) => {
      const made = event.target.closest(".token");
      if (made && getSelection().isCollapsed) this.pick(made);
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  show(list) {
    this.list = [];
    this.element.replaceChildren();
    this.add(list);
  }

  add(list) {
    const every = list.map((token, number) => this.made(token, this.list.length + number));
    this.list = [...this.list, ...list];
    this.element.append(...every);
    if (this.onpick && every.length && this.list.length === list.length) this.rove(0);
  }

  made(token, place) {
    const probability = token.given ? null : probabilityOf(token);
    const kinds = [
      "token",
      token.given ? "given" : step(probability),
      token.chosen ? "chosen" : "",
      token.differs ? "differs" : "",
      /^[ \t]*\n\s*$/.test(token.text) ? "break" : "",
      token.text === "" ? "nothing" : "",
      token.over ? "over" : "",
    ];
    const said = quoted(named(token));
    const facts = [
      token.over ? "stop text, left off" : "",
      token.given ? "of the prompt" : probability === null ? "" : percent(probability),
      token.chosen ? "chosen by you" : "",
      token.differs ? "differs" : "",
    ];
    const title = [said, facts.filter(Boolean).join(", ")].filter(Boolean).join(": ");
    const pickable = this.onpick ? { role: "button", tabindex: -1, "aria-label": title, "data-place": place } : {};
    const attributes = { class: kinds.filter(Boolean).join(" "), title, ...pickable };
    return element(token.differs && !this.onpick ? "mark" : "span", attributes, running(token.text));
  }

  /** One of them is in the order of the Tab key. */
  rove(place) {
    const { children } = this.element;
    if (children[this.at]) children[this.at].tabIndex = -1;
    this.at = Math.min(children.length - 1, Math.max(0, place));
    if (children[this.at]) children[this.at].tabIndex = 0;
    return children[this.at];
  }

  pick(made) {
    this.rove(Number(made.dataset.place));
    this.onpick(this.at, made);
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

  focus(place) {
    this.rove(place)?.focus();
  }
}
