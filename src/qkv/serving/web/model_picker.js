// @ts-check
// The choice of the model, with its size. It keeps its place while models load, so that nothing below it moves.

import { element } from "qkv/elements.js";

export class ModelPicker {
  constructor(onpick) {
    this.select = element("select", { id: "model", onchange: () => onpick(this.select.value) });
    this.facts = element("p", { class: "note facts" });
    const name = element("label", { for: "model" }, "Model");
    this.element = element("div", { class: "picking-model" }, name, this.select, this.facts);
  }

  /** Shows the models of the tab, and the chosen one (or null). */
  show(able, model) {
    const key = JSON.stringify([able.map(({ id, qkv }) => [id, qkv.state]), model?.id]);
    if (this.shown === key) return;
    this.shown = key;
    this.select.disabled = able.length === 0;
    const options = able.map(({ id, qkv: { state } }) =>
      element("option", { value: id }, state === "ready" ? id : `${id} (${state})`),
    );
    this.select.replaceChildren(...(options.length ? options : [element("option", {}, "none")]));
    if (model) this.select.value = model.id;
    const { layers, heads, context, vocabulary } = model?.qkv ?? {};
    const counts = { layers, heads, "tokens of context": context, "tokens in the vocabulary": vocabulary };
    const facts = Object.entries(counts).filter(([, count]) => count);
    this.facts.textContent = facts.map(([what, count]) => `${count.toLocaleString("en")} ${what}`).join(" · ");
    this.facts.title = this.facts.textContent;
  }
}
