// @ts-check
// Buttons that zoom a map, for those without a wheel.

import { element } from "qkv/elements.js";

const STEP = 1.4;

export function zoomButtons(viewport) {
  const button = (text, name, act) =>
    element("button", { type: "button", "aria-label": name, title: name, onclick: act }, text);
  return element(
    "div",
    { class: "zoom", role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in (+)", () => viewport.zoom(STEP)),
    button("−", "Zoom out (−)", () => viewport.zoom(1 / STEP)),
    button("0", "Show all (0)", () => viewport.fit()),
  );
}
