// An attention that computes its scores in its own way keeps its captured weights on the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { headRow, UNEDITED } from "qkv/walk_data.js";

const WALK = {
  score: "other",
  divisor: 1,
  query: [[1], [1]],
  key: [[0], [3]],
  value: [[10], [20]],
  scores: [[0, -Infinity], [0, 0]],
  weights: [[1, 0], [0.25, 0.5]], // not even a softmax
  visible: [[1, 0], [1, 1]],
  output: [[10], [12.5]],
  bias: null,
  additive: null,
  rotary: null,
};

test("captured weights are shown, and only an edited row is replaced", () => {
  assert.deepEqual([...headRow(WALK, 1).weights], [0.25, 0.5]);
  assert.deepEqual([...headRow(WALK, 1).output], [12.5]);
  const edits = { ...UNEDITED, divisor: 9, weights: { 1: [0, 1] } };
  assert.deepEqual([...headRow(WALK, 0, edits).weights], [1, 0]);
  assert.deepEqual([...headRow(WALK, 1, edits).output], [20]);
});

test("a known equation computes them", () => {
  const weights = headRow({ ...WALK, score: "dot" }, 1).weights;
  assert.ok(Math.abs(weights[1] - 1 / (1 + Math.exp(-3))) < 1e-12);
});
