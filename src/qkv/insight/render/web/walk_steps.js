// @ts-check
// The steps of the walk in order, and their names.

export const STEPS = [
  "query",
  "key",
  "product",
  "scale",
  "mask",
  "softmax",
  "value",
  "sum",
  "written",
  "lens",
];

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
