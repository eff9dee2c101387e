// @ts-check
// A text whose tokens are tinted by a signed number: more in one colour, less in the other; also as a table.

import { element } from "qkv/elements.js";
import { printable, quoted } from "qkv/token_text.js";
import { named, spaced } from "./tokens.js";

const VISIBLE = 0.08; // of the largest value, from which a token is underlined, too

export class SignedTokens {
  /** `columns` are the names of the table's columns after the token. */
  constructor(name, columns) {
    this.at = 0;
    this.columns = columns;
    const how = `${name}. Arrow keys move from token to token.`;
    this.text = element("div", { class: "tokens signed-text", role: "group", "aria-label": how });
    this.text.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["focusin", "pointerover"]) {
      this.text.addEventListener(kind, ({ target }) => this.tell(target.closest(".token")));
    }
    this.status = element("p", { class: "note signed-status" });
    this.body = element("tbody");
    const titles = ["Token", ...columns].map((title) => element("th", { scope: "col" }, title));
    const head = element("thead", {}, element("tr", {}, ...titles));
    const caption = element("caption", { class: "unseen" }, name);
    const table = element("table", { class: "numbers-table" }, caption, head, this.body);
    const scroll = element("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": name }, table);
    this.element = element(
      "div",
      { class: "signed" },
      this.text,
      this.status,
      element("details", {}, element("summary", {}, "As a table"), scroll),
    );
  }

  /** Tokens with `value` (null if there is none), `facts` in words, and `cells` of the table. */
  show(tokens, hint) {
    this.hint = hint;
    this.facts = tokens.map((token) => `${quoted(named(token))}: ${token.facts}`);
    const most = Math.max(1e-9, ...tokens.map(({ value }) => Math.abs(value ?? 0)));
    this.text.replaceChildren(...tokens.map((token, position) => this.tokenNode(token, position, most)));
    this.body.replaceChildren(
      ...tokens.map((token) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, spaced(token)),
          ...token.cells.map((cell) => element("td", {}, cell)),
        ),
      ),
    );
    this.rove(0);
    this.status.textContent = hint;
  }

  tokenNode(token, position, most) {
    const size = Math.abs(token.value ?? 0) / most;
    const kinds = [
      "token",
      "signed-token",
      token.value > 0 ? "more" : token.value < 0 ? "less" : "",
      size >= VISIBLE ? "seen" : "",
      /^[ \t]*\n\s*$/.test(token.text) ? "break" : "",
      token.text === "" ? "named" : "",
    ];
    const label = { role: "img", "aria-label": this.facts[position], title: this.facts[position] };
    const attributes = { class: kinds.filter(Boolean).join(" "), tabindex: -1, "data-position": position, ...label };
    const node = element("span", attributes, token.text === "" ? named(token) : printable(token.text));
    node.style.setProperty("--size", size.toFixed(3));
    return node;
  }

  tell(node) {
    if (node) this.status.textContent = this.facts[Number(node.dataset.position)];
  }

  /** Makes one token reachable by the Tab key. */
  rove(position) {
    const { children } = this.text;
    if (children[this.at]) children[this.at].tabIndex = -1;
    this.at = Math.min(children.length - 1, Math.max(0, position));
    if (children[this.at]) children[this.at].tabIndex = 0;
    return children[this.at];
  }

  key(event) {
    const last = this.text.children.length - 1;
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.rove(to)?.focus();
  }
}

/** A number with its sign, and a real minus. */
export function signed(number, digits = 2) {
  const text = Math.abs(number).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${number < 0 ? "−" : "+"}${text}`;
}

/** The legend of both colours. */
export function signedLegend(more, less) {
  return element(
    "p",
    { class: "signed-legend" },
    element("span", { class: "token signed-token more seen" }, more),
    element("span", { class: "token signed-token less seen" }, less),
  );
}
