// @ts-check
// Alternatives to a token: a card beside it, from which generation continues with another one.

import { fillBars } from "qkv/bar_list.js";
import { element, percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { named, probabilityOf, spaced } from "./tokens.js";

export class Alternatives {
  constructor() {
    this.heading = element("h2", { id: "alternatives-title", tabindex: -1 });
    this.list = element("ol", { class: "bars options" });
    this.note = element("p", { class: "note" });
    this.element = element(
      "div",
      { class: "card", popover: "auto", role: "dialog", "aria-labelledby": "alternatives-title" },
      this.heading,
      this.list,
      this.note,
    );
    this.element.addEventListener("toggle", ({ newState }) => newState === "closed" && this.closed());
    this.list.addEventListener("keydown", (event) => this.key(event));
  }

  /** Opens at a token. `coming` promises the alternatives; `onchoose` gets the chosen one. */
  async open(anchor, token, coming, onchoose) {
    this.anchor = anchor;
    const request = (this.request = {});
    this.heading.replaceChildren("Alternatives to ", spaced(token));
    this.list.replaceChildren();
    this.note.textContent = "Loading …";
    this.element.showPopover();
    this.moveToAnchor();
    this.heading.focus();
    let options;
    try {
      options = await coming;
    } catch (error) {
      if (this.request === request) this.note.textContent = error.message;
      return;
    }
    if (this.request !== request) return;
    const listed = options.some(({ id }) => id === token.id) || token.fromPrompt ? options : [...options, token];
    fillBars(
      this.list,
      listed.map((option) => this.option(option, token, onchoose)),
    );
    const filtered = options.some((option) => option.probability === 0);
    this.note.textContent =
      "Choose one to continue from it." + (filtered ? " Pale ones are filtered out by top-k, top-p or min-p." : "");
    this.moveToAnchor();
    (this.list.querySelector("[aria-current]") ?? this.list.querySelector("button"))?.focus();
  }

  /** An alternative as a row of the list. */
  option(option, token, onchoose) {
    const value = probabilityOf(option);
    const current = option.id === token.id;
    const out = option.probability === 0;
    const text = named(option);
    return {
      text,
      value,
      id: option.id,
      actual: current,
      out,
      name: `${quoted(text)}, ${percent(value)}${current ? ", current" : ""}${out ? ", filtered out" : ""}`,
      onpick: () => {
        this.element.hidePopover();
        onchoose(option);
      },
    };
  }

  /** Moves the card below the token, inside the window. */
  moveToAnchor() {
    const box = this.anchor.getClientRects()[0] ?? this.anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(12, Math.min(box.left, document.documentElement.clientWidth - width - 12));
    const above = box.bottom + height + 12 > innerHeight && box.top > height + 12;
    this.element.style.left = `${left + scrollX}px`;
    this.element.style.top = `${(above ? box.top - height - 6 : box.bottom + 6) + scrollY}px`;
  }

  closed() {
    this.request = null;
    const inside = this.element.contains(document.activeElement) || document.activeElement === document.body;
    if (inside && this.anchor?.isConnected) this.anchor.focus();
  }

  key(event) {
    const buttons = [...this.list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, to))]?.focus();
  }
}
