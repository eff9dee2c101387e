// @ts-check
// The steps of the walk in order, and their names.

export const STEPS = ["query", "key", "product", "scale", "mask", "softmax", "value", "sum", "written", "lens"];

export const NAMES = {
  query: "Query",
  key: "Keys",
  product: "Query × key",
  scale: "Scale",
  mask: "Mask",
  softmax: "Softmax",
  value: "Values",
  sum: "Sum",
  written: "Residual",
  lens: "Prediction",
};

/** What can be tried in a step, while no number is chosen. */
export const TRY = {
  query: "Point at a number, or choose another token.",
  key: "Try it: swap two keys.",
  product: "Try it: number by number, the largest first.",
  scale: "Try it: divide by 1.",
  mask: "Try it: lift the mask.",
  softmax: "Try it: drag a bar; the others make room.",
  value: "Try it: drag a bar, and its value grows or fades.",
  sum: "Try it: give one token all the weight.",
  written: "Point at a number.",
  lens: "Go back and change something: what remains of it here?",
};
