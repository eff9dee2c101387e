// @ts-check
// A vector as a strip of cells, one pixel each, which the style sheet stretches: blue above 0, red below.

import { element } from "qkv/elements.js";

// From the colour of the sheet to that of a large number; the two hues differ for colour-blind readers, too.
const COLOURS = {
  light: { zero: [240, 241, 242], above: [9, 83, 158], below: [158, 27, 27] },
  dark: { zero: [38, 42, 51], above: [112, 190, 255], below: [255, 128, 110] },
};

/** A number in little room: 6.26, −0.031, 1.2e5. */
export function short(number) {
  if (number === -Infinity) return "−∞";
  if (!Number.isFinite(number)) return String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e5) return String(number).replace("-", "−");
  const size = Math.abs(number);
  const text =
    size !== 0 && (size < 0.0005 || size >= 1e5) ? number.toExponential(1) : number.toFixed(size < 1 ? 3 : 2);
  return text.replace("-", "−");
}

/** The colour of a number as three bytes; a number of size `most` or more has the full colour. */
export function signedColour(number, most, theme) {
  const { zero, above, below } = COLOURS[theme];
  const part = Math.min(1, Math.abs(number) / most) ** 0.8;
  const end = number < 0 ? below : above;
  return zero.map((channel, index) => Math.round(channel + part * (end[index] - channel)));
}

export class VectorStrip {
  /** `onhover(index)` gets the number under the pointer, or null. */
  constructor(kind, onhover = null) {
    this.canvas = element("canvas", { class: "numbers-strip", width: 1, height: 1 });
    this.element = element("span", { class: `vector ${kind}`, role: "img" }, this.canvas);
    if (!onhover) return;
    this.element.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const index = Math.floor(((event.clientX - box.left) / box.width) * this.canvas.width);
      onhover(Math.min(this.canvas.width - 1, Math.max(0, index)));
    });
    this.element.addEventListener("pointerleave", () => onhover(null));
  }

  /** Draws the numbers; `most` is the size that has the full colour. */
  show(numbers, most, theme, name) {
    const { canvas } = this;
    canvas.width = numbers.length;
    const context = canvas.getContext("2d");
    const image = context.createImageData(numbers.length, 1);
    for (let i = 0; i < numbers.length; i++) {
      image.data.set([...signedColour(numbers[i], most, theme), 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    this.element.style.setProperty("--count", numbers.length);
    this.element.setAttribute("aria-label", `${name}: ${numbers.length} numbers`);
  }
}
