// @ts-check
// The formula of attention, of which the part of the current step is lit, and the steps below the walk.

import { element } from "qkv/elements.js";
import { NAMES, STEPS } from "qkv/walk_steps.js";

/** The parts of the formula: a text, its class, and the steps in which it is lit. */
function parts({ score, divisor, bias, written, visible, lens }) {
  const sum = {
    additive: [
      ["w · tanh(", "", ["product"]],
      ["q", "is-query", ["query", "product"]],
      [" + ", "", ["product"]],
      ["k", "is-key", ["key", "product"]],
      [")", "", ["product"]],
    ],
  };
  const product = [
    ["q", "is-query", ["query", "product"]],
    [" · ", "", ["product"]],
    ["k", "is-key", ["key", "product"]],
  ];
  return [
    ["softmax( ", "", ["softmax"]],
    ...(sum[score] ?? product),
    ...(divisor === 1 ? [] : [[" / √d", "", ["scale"]]]),
    ...(bias ? [[" + position", "", ["mask"]]] : []),
    ...(visible.some((see) => see.some((one) => !one)) ? [[" + mask", "", ["mask"]]] : []),
    [" )", "", ["softmax"]],
    [" v", "is-value", ["value", "sum"]],
    ...(written ? [["  W", "", ["written"], "O"]] : []),
    ...(written ? [[" → x", "", ["written"]]] : []),
    ...(lens ? [[" → logits", "", ["lens"]]] : []),
  ];
}

export class Formula {
  constructor() {
    this.element = element("p", { class: "formula", role: "img" });
  }

  show(walk, step) {
    const current = STEPS[step - 1];
    const pieces = parts(walk).map(([text, kind, steps, below]) => {
      const lit = steps.includes(current) ? " lit" : "";
      return element("span", { class: `${kind}${lit}` }, text, ...(below ? [element("sub", {}, below)] : []));
    });
    this.element.replaceChildren(...pieces);
    this.element.setAttribute("aria-label", `Formula: ${this.element.textContent}; now: ${NAMES[current]}`);
  }
}

export class Steps {
  /** `onstep(number)` gets a step from 1. */
  constructor(onstep) {
    this.step = 1;
    this.back = element("button", { type: "button", class: "back", onclick: () => onstep(this.step - 1) }, "← Back");
    this.next = element("button", { type: "button", class: "next", onclick: () => onstep(this.step + 1) }, "Next →");
    this.pips = STEPS.map((name, number) =>
      element(
        "button",
        { type: "button", class: "pip", title: NAMES[name], onclick: () => onstep(number + 1) },
        element("span", { class: "pip-name" }, `${number + 1} ${NAMES[name]}`),
      ),
    );
    const list = element("div", { class: "pips", role: "group", "aria-label": "Steps" }, ...this.pips);
    this.element = element("div", { class: "steps" }, this.back, list, this.next);
  }

  show(step) {
    this.step = step;
    this.back.disabled = step === 1;
    this.next.disabled = step === STEPS.length;
    this.pips.forEach((pip, number) => {
      pip.classList.toggle("done", number < step);
      if (number === step - 1) pip.setAttribute("aria-current", "step");
      else pip.removeAttribute("aria-current");
    });
  }
}
