// What could have stood at a place: a card beside the token, from which one goes on with another.

import { element, percent } from "qkv/elements.js";
import { quoted } from "qkv/words.js";
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

  /** At a token. `coming` promises the alternatives, of which `onchoose` hears one. */
  async open(anchor, token, coming, onchoose) {
    this.anchor = anchor;
    const asked = (this.asked = {});
    this.heading.replaceChildren("In the place of ", spaced(token));
    this.list.replaceChildren();
    this.note.textContent = "Asking the model …";
    this.element.showPopover();
    this.place();
    this.heading.focus();
    let options;
    try {
      options = await coming;
    } catch (error) {
      if (this.asked === asked) this.note.textContent = error.message;
      return;
    }
    if (this.asked !== asked) return;
    const listed = options.some(({ id }) => id === token.id) || token.given ? options : [...options, token];
    this.list.replaceChildren(...listed.map((option) => element("li", {}, this.option(option, token, onchoose))));
    const filtered = options.some((option) => option.probability === 0);
    this.note.textContent =
      "Choose one to go on from there." + (filtered ? " The pale ones are left out by top-k, top-p or min-p." : "");
    this.place();
    (this.list.querySelector("[aria-current]") ?? this.list.querySelector("button"))?.focus();
  }

  option(option, token, onchoose) {
    const { id, probability } = option;
    const text = named(option);
    const likely = probabilityOf(option);
    const here = id === token.id;
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", likely);
    const left = probability === 0 ? ", left out by the filters" : "";
    return element(
      "button",
      {
        type: "button",
        class: probability === 0 ? "option out" : "option",
        "data-id": id,
        "aria-current": here ? "true" : null,
        "aria-label": `${quoted(text)}, ${percent(likely)}${here ? ", stands there" : ""}${left}`,
        onclick: () => {
          this.element.hidePopover();
          onchoose(option);
        },
      },
      spaced(option),
      element("span", { class: "number" }, percent(likely)),
      bar,
    );
  }

  /** Below the token, inside the window. */
  place() {
    const box = this.anchor.getClientRects()[0] ?? this.anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(12, Math.min(box.left, document.documentElement.clientWidth - width - 12));
    const above = box.bottom + height + 12 > innerHeight && box.top > height + 12;
    this.element.style.left = `${left + scrollX}px`;
    this.element.style.top = `${(above ? box.top - height - 6 : box.bottom + 6) + scrollY}px`;
  }

  closed() {
    this.asked = null;
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
