// @ts-check
// Controls of what is shown of heads: one head or a mean, with or without the first token and special tokens.

import { element } from "qkv/elements.js";
import { sinkNames } from "qkv/left_out.js";

const MEANS = { "": "one head", layer: "mean of the layer", all: "mean of all heads" };

export class HeadControls {
  constructor(page) {
    this.page = page;
    const pick = () => page.set({ mean: this.mean.value || null });
    this.mean = element(
      "select",
      { id: "choose-mean", "aria-label": "One head or a mean", onchange: pick },
      ...Object.entries(MEANS).map(([value, name]) => element("option", { value }, name)),
    );
    this.without = element("button", {
      type: "button",
      class: "switch",
      title: "Leave out the first token and special tokens, and rescale the rest to 100%",
      onclick: () => page.set({ without: !page.state.without }),
    });
    this.parts = [this.mean, this.without];
  }

  show(state) {
    const attention = this.page.store.attention(state.kind);
    const of = (...views) => views.includes(state.view);
    const single = !attention || attention.names || attention.depth * attention.heads === 1;
    this.mean.hidden = !of("head", "lines") || single;
    this.mean.value = state.mean ?? "";
    this.mean.lastChild.disabled = !attention?.telling;
    this.without.hidden = !of("head", "heads", "lines") || !attention?.sinks.length || Boolean(attention.names);
    if (this.without.hidden) return;
    const names = sinkNames(attention, this.page.store.data.sides[attention.columns]);
    const short = names.length < 24 ? names : "first and special tokens";
    this.without.textContent = `Leave out ${short}`;
    this.without.setAttribute("aria-pressed", String(state.without));
  }
}
