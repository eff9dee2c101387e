// @ts-check
// Touching the equation: the divisor, the mask, two keys; and what the server answers.

import { element } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { UNEDITED, edited } from "qkv/walk_data.js";
import { rootOf } from "qkv/walk_text.js";
import { changes, rest } from "qkv/walk_after.js";

const NEAR = 0.01; // of the divisor: the slider snaps to it, but a step by key leaves it

export class Touch {
  /** @type {any} */
  edits;
  /** @type {any} */
  walk;

  /** `onedit(edits)` gets all edits; `onpanel(name)` opens or closes a panel. */
  constructor(onedit, onpanel) {
    this.onedit = onedit;
    this.divisor = element("input", {
      ...{ type: "range", step: "any", id: "walk-divisor", list: "walk-root" },
      oninput: () => this.setDivisor(Number(this.divisor.value)),
    });
    this.root = element("datalist", { id: "walk-root" });
    this.divided = element("output", { class: "number", for: "walk-divisor" });
    const label = element("label", { class: "name", for: "walk-divisor" }, "Divide by");
    this.dividing = element("span", { class: "tried", "data-from": 4 }, label, this.divisor, this.root, this.divided);
    this.lift = element("input", { type: "checkbox", onchange: () => this.change({ lifted: this.lift.checked }) });
    this.lifting = element("label", { class: "tried", "data-from": 5 }, this.lift, " Lift the mask");
    const pick = () => this.swap();
    this.swaps = ["First key to swap", "Second key to swap"].map((name) =>
      element("select", { "aria-label": name, onchange: pick }),
    );
    const [first, second] = this.swaps;
    this.swapping = element("span", { class: "tried", "data-from": 2 }, "Swap keys ", first, " ", second);
    const panel = (name, title, from) =>
      element(
        "button",
        { type: "button", "data-panel": name, "data-from": from, class: "tried", onclick: () => onpanel(name) },
        title,
      );
    this.panels = [panel("numbers", "Number by number", 1), panel("distance", "Move a token", 3)];
    this.reset = element("button", { type: "button", class: "reset", onclick: () => this.change(UNEDITED) }, "Reset");
    this.element = element(
      "div",
      { class: "touch", role: "group", "aria-label": "Try it" },
      ...this.panels,
      this.swapping,
      this.dividing,
      this.lifting,
      this.reset,
    );
  }

  /** New edits; weights that were set by hand are dropped when the scores change. */
  change(changes) {
    const kept = "weights" in changes ? {} : { weights: {} };
    this.onedit({ ...this.edits, ...kept, ...changes });
  }

  setDivisor(value) {
    const own = this.walk.divisor;
    this.change({ divisor: Math.abs(value - own) < NEAR * own ? null : value });
  }

  swap() {
    const [a, b] = this.swaps.map((list) => list.value);
    const complete = a !== "" && b !== "" && a !== b;
    if (complete) this.change({ swapped: [[Number(a), Number(b)]] });
    else if (this.edits.swapped.length) this.change({ swapped: [] });
  }

  show({ walk, edits, step, keys, panel, row }) {
    Object.assign(this, { walk, edits });
    const own = walk.divisor;
    Object.assign(this.divisor, { min: Math.min(1, own / 4), max: Math.max(4, 2 * own) });
    this.divisor.value = edits.divisor ?? own;
    const text = edits.divisor === null ? rootOf(walk) : short(edits.divisor);
    this.divided.textContent = text;
    this.divisor.setAttribute("aria-valuetext", text);
    this.root.replaceChildren(element("option", { value: own }));
    this.lift.checked = edits.lifted;
    const masked = walk.visible.some((see) => see.some((one) => !one));
    if (this.named !== keys) this.fill(keys);
    const pair = edits.swapped[0] ?? (edits === UNEDITED ? ["", ""] : null); // else one of the two may be chosen
    if (pair) this.swaps.forEach((list, number) => (list.value = String(pair[number])));
    this.reset.hidden = !edited(edits);
    for (const node of this.element.querySelectorAll("[data-from]")) {
      node.hidden = step < Number(node.dataset.from) || step > 8 || (node === this.lifting && !masked);
    }
    if (walk.score === "other") this.dividing.hidden = this.swapping.hidden = this.lifting.hidden = true;
    for (const button of this.panels) button.setAttribute("aria-expanded", String(button.dataset.panel === panel));
    this.panels[1].disabled = row.rows.length < 1;
  }

  fill(keys) {
    this.named = keys;
    for (const list of this.swaps) {
      const options = keys.map((key, at) => element("option", { value: at }, `${quoted(key)} ${at}`));
      list.replaceChildren(element("option", { value: "" }, "–"), ...options);
    }
  }
}

/** The answer of the server to the edits: next-token probabilities before and after. */
export class Answer {
  constructor() {
    this.element = element("div", { class: "answer", "aria-live": "polite" });
    this.hint = element("p", { class: "note hint" }, "Change something, and the model computes the rest anew.");
  }

  /** `next` is null if no token is predicted; without a server the note says what is missing. */
  show({ edits, step, served, next, problem, tokens, follows }) {
    const changed = edited(edits);
    this.hint.hidden = !served || changed;
    this.element.hidden = !changed || (!served && step > 8); // there the numbers themselves are not those of the edits
    if (this.element.hidden) return;
    const note = (text) => element("p", { class: "note" }, text);
    if (!served) {
      const text = "Scores, weights and what the head hands on are computed anew here. ";
      this.element.replaceChildren(element("p", { class: "note" }, text, ...rest()));
    } else if (problem) this.element.replaceChildren(note(problem));
    else if (next === undefined) this.element.replaceChildren(note("The model computes the rest …"));
    else if (next === null) this.element.replaceChildren(note("This model predicts no tokens."));
    else {
      const where = follows ? "Next token after" : "Prediction at";
      const title = `${where} ${quoted(tokens[next.position] ?? "")}, before → now`;
      this.element.replaceChildren(element("h2", {}, title), changes(next.tokens.slice(0, 6), title));
    }
  }
}
