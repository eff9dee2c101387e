// @ts-check
// The keys of the walk: arrows step and choose the token; with Shift they choose the row and the number.

import { STEPS } from "qkv/walk_steps.js";

/** Does what a key means in the walk; false if it means nothing there. */
export function walkKey(view, event) {
  const { page, walk } = view;
  const { step } = page.state;
  const { token } = view.told.row;
  const plain = {
    ArrowLeft: () => page.set({ step: step - 1 }),
    ArrowRight: () => page.set({ step: step + 1 }),
    ArrowUp: () => page.set({ token: Math.max(0, token - 1) }),
    ArrowDown: () => page.set({ token: Math.min(walk.query.length - 1, token + 1) }),
    Home: () => page.set({ step: 1 }),
    End: () => page.set({ step: STEPS.length }),
  };
  const shifted = {
    ArrowUp: () => stepRow(view, -1),
    ArrowDown: () => stepRow(view, 1),
    ArrowLeft: () => stepNumber(view, -1),
    ArrowRight: () => stepNumber(view, 1),
  };
  const act = (event.shiftKey ? shifted : plain)[event.key];
  act?.();
  return Boolean(act);
}

function stepRow(view, by) {
  const { positions } = view.table;
  const place = positions.indexOf(view.told.picked) + by;
  view.pick(positions[Math.min(positions.length - 1, Math.max(0, place))]);
}

function stepNumber(view, by) {
  const { row, step } = view.told;
  const last = (step >= 7 ? row.output.length : row.query.length) - 1;
  const from = view.index ?? (by > 0 ? -1 : last + 1);
  view.hover(Math.min(last, Math.max(0, from + by)));
}
