import assert from "node:assert/strict";
import { test } from "node:test";

import { redraw } from "../../src/qkv/serving/web/sampling_math.js";

const plain = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };
const known = [0.4, 0.3, 0.1];

function near(numbers, expected) {
  assert.equal(numbers.length, expected.length);
  numbers.forEach((number, index) => assert.ok(Math.abs(number - expected[index]) < 1e-12, `${numbers}`));
}

test("neutral parameters leave the probabilities of the model", () => {
  const { drawn, rest, exact } = redraw(known, 0.2, 50, plain);
  near([...drawn, rest], [0.4, 0.3, 0.1, 0.2]);
  assert.ok(exact);
});

test("filters keep the likeliest, whose probabilities then sum to 1", () => {
  near(redraw(known, 0.2, 50, { ...plain, top_k: 2 }).drawn, [4 / 7, 3 / 7, 0]);
  near(redraw(known, 0.2, 50, { ...plain, top_p: 0.5 }).drawn, [4 / 7, 3 / 7, 0]);
  near(redraw(known, 0.2, 50, { ...plain, min_p: 0.5 }).drawn, [4 / 7, 3 / 7, 0]);
  near(redraw(known, 0.2, 50, { ...plain, temperature: 0 }).drawn, [1, 0, 0]);
});

test("a result that depends on unknown tokens is an estimate", () => {
  assert.ok(!redraw(known, 0.2, 50, { ...plain, temperature: 1.5 }).exact);
  assert.ok(!redraw(known, 0.2, 50, { ...plain, top_p: 0.9 }).exact);
  assert.ok(!redraw(known, 0.2, 50, { ...plain, top_k: 9 }).exact);
  assert.ok(redraw(known, 0.2, 50, { ...plain, temperature: 1.5, top_k: 3 }).exact);
  assert.ok(redraw([0.5, 0.5], 0, 0, { ...plain, temperature: 1.5, top_p: 0.9 }).exact);
});
