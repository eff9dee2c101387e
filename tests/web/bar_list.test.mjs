import assert from "node:assert/strict";
import { test } from "node:test";
import { left } from "qkv/bar_list.js";
import { percent } from "qkv/elements.js";
import { EXPLANATIONS } from "qkv/explanations.js";
import { VIEWS } from "qkv/state.js";

test("the others are what is left to 100%, unless it would read 0%", () => {
  assert.ok(Math.abs(left([0.5, 0.25]) - 0.25) < 1e-12);
  assert.equal(left([0.7, 0.2999]), null);
  assert.equal(left([0.6, 0.6]), null);
  assert.equal(left([]), 1);
});

test("percentages have as many digits as they need", () => {
  assert.deepEqual([0, 1e-6, 0.0004, 0.0123, 1].map(percent), ["0%", "<0.01%", "0.04%", "1.2%", "100.0%"]);
});

test("every view has a sentence, a formula and what a screen reader says of it", () => {
  for (const view of VIEWS) {
    const { sentence, formulas, text } = EXPLANATIONS[view] ?? {};
    assert.match(sentence ?? "", /^[A-Z].*\.$/, view);
    assert.ok(sentence.length < 100 && !/\bword/i.test(sentence), view);
    assert.ok(text.length >= 1 && formulas.length >= 1, view);
    for (const { said, written } of formulas) assert.ok(said.length > 20 && !/[*_^{}]/.test(said), written);
  }
});
