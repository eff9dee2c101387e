// @ts-check
// The fields of steering: two prompts, a layer and a strength. Their difference is a direction.

import { element } from "qkv/elements.js";
import { note } from "./notices.js";
import { parsed } from "./settings.js";

const EXAMPLE = {
  from: "The cat is sitting on the table and it is eating bread.",
  to: "Le chat est assis sur la table et il mange du pain.",
  strength: 1,
};
const ABOUT =
  "The direction is the mean residual stream of one prompt minus that of the other. It is added at every token.";

/** The steering of the settings: {from, to, layer, strength}, with its gaps filled. */
export function steeringOf({ steer }, layers) {
  const { from = "", to = "", layer, strength = 1 } = parsed(steer, {});
  const usual = Math.floor(0.4 * (layers - 1));
  const known = Number.isInteger(layer) && layer >= 0 && layer < layers;
  return {
    from: String(from),
    to: String(to),
    layer: known ? layer : usual,
    strength: Number.isFinite(strength) ? Math.max(-4, Math.min(4, strength)) : 1,
  };
}

/** Whether it changes anything. */
export function steers({ from, to, strength }) {
  return from.trim() !== "" && to.trim() !== "" && strength !== 0;
}

export class SteeringFields {
  constructor(app) {
    this.app = app;
    const text = (name) => {
      const node = element("textarea", { id: `steer-${name}`, rows: 1, dir: "auto", maxlength: 2000 });
      node.addEventListener("input", () => this.change({ [name]: node.value }));
      return node;
    };
    this.from = text("from");
    this.to = text("to");
    this.layer = element("input", { type: "number", id: "steer-layer", min: 0, step: 1, inputmode: "numeric" });
    this.layer.addEventListener("change", () => this.change({ layer: Math.round(Number(this.layer.value)) }));
    const range = { type: "range", id: "steer-strength", min: -4, max: 4, step: 0.1 };
    this.strength = element("input", range);
    this.strength.addEventListener("input", () => this.change({ strength: Number(this.strength.value) }));
    this.number = element("output", { for: "steer-strength" });
    const labelled = (name, node, ...more) =>
      element("div", { class: "labelled" }, element("label", { for: node.id }, name), node, ...more);
    const button = (name, onclick) => element("button", { type: "button", onclick }, name);
    this.clear = button("No steering", () => app.set({ steer: "" }));
    this.element = element(
      "details",
      { class: "steering" },
      element("summary", {}, "Steering"),
      note(ABOUT),
      element("div", { class: "steering-texts" }, labelled("From", this.from), labelled("To", this.to)),
      element(
        "div",
        { class: "steering-numbers" },
        labelled("After layer", this.layer),
        element(
          "div",
          { class: "labelled" },
          element("label", { for: "steer-strength" }, "Strength"),
          element("span", { class: "ranged" }, this.strength, this.number),
        ),
        element(
          "div",
          { class: "actions" },
          button("Example: more French", () => this.change(EXAMPLE)),
          this.clear,
        ),
      ),
    );
  }

  get layers() {
    return this.app.model?.qkv.layers ?? 1;
  }

  change(changes) {
    const steering = { ...steeringOf(this.app.settings, this.layers), ...changes };
    this.app.set({ steer: JSON.stringify(steering) });
  }

  show(settings) {
    const steering = steeringOf(settings, this.layers);
    if (settings.steer && this.shown === undefined) this.element.open = true;
    this.shown = settings.steer;
    for (const name of ["from", "to"]) if (this[name].value !== steering[name]) this[name].value = steering[name];
    this.layer.max = String(this.layers - 1);
    this.layer.value = steering.layer;
    this.strength.value = String(steering.strength);
    this.number.textContent = steering.strength.toFixed(1);
    this.clear.hidden = settings.steer === "";
  }
}
