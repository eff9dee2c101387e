// @ts-check
// Moving the bar of a weight: the pointer is measured by the bar as it was when the drag began.

import { headRow } from "qkv/walk_data.js";
import { reweighted, sum } from "qkv/walk_math.js";

const STEP = 0.01; // of a weight, for the pointer as for the keys

/**
 * Calls `onweight(weight)` whenever the slider is moved, by pointer or by keys.
 * @param {HTMLInputElement} slider
 * @param {(weight: number) => void} onweight
 */
export function weightSlider(slider, onweight) {
  let dragged = false; // then the pointer counts, and not what the slider makes of it
  slider.addEventListener("input", () => {
    if (!dragged) onweight(Number(slider.value));
  });
  slider.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || slider.disabled) return;
    const box = slider.getBoundingClientRect();
    const { pointerId } = event;
    const take = ({ clientX }) => {
      const part = Math.min(1, Math.max(0, (clientX - box.left) / box.width));
      onweight(STEP * Math.round(part / STEP));
    };
    const move = (moved) => {
      if (moved.pointerId === pointerId) take(moved);
    };
    const end = (ended) => {
      if (ended.pointerId !== pointerId) return;
      dragged = false;
      document.removeEventListener("pointermove", move);
      document.removeEventListener("pointerup", end);
      document.removeEventListener("pointercancel", end);
    };
    dragged = true;
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerup", end);
    document.addEventListener("pointercancel", end);
    take(event);
  });
}

/** Sets weights by hand; while one bar is moved, the others keep the proportions that they had before. */
export class SetWeights {
  constructor() {
    this.last = { at: -1, before: null, made: null };
  }

  /** The weights of a query with that of the key `at` set. */
  changed(walk, row, edits, at, weight) {
    const same = this.last.at === at && this.last.made !== null && edits.weights[row.token] === this.last.made;
    const before = same ? this.last.before : this.proportions(walk, row, edits, at);
    const seen = row.rows.map(({ visible }) => visible);
    const made = reweighted(before, at, weight, seen);
    this.last = { at, before, made };
    return made;
  }

  /** The weights from which the others are scaled: the shown ones, or those of the scores if the others have none. */
  proportions(walk, row, edits, at) {
    const others = sum(row.weights) - row.weights[at];
    return others > 1e-9 ? row.weights : headRow(walk, row.token, { ...edits, weights: {} }).weights;
  }
}
