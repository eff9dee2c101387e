import assert from "node:assert/strict";
import { test } from "node:test";
import { brief, level, ofSource, placeName, placeOf, placesInside, placesOf, stackAt, within } from "qkv/model_walk_places.js";

const BLOCK = [{ name: "attention" }, { name: "feed_forward" }];
const GPT = {
  stacks: [{ kind: "self", side: 0, norm: "before", ends_with_norm: true, blocks: [BLOCK, BLOCK] }],
  steps: [],
  next: {},
};
const CROSSED = [{ name: "attention" }, { name: "cross_attention" }, { name: "feed_forward" }];
const TRANSLATOR = {
  stacks: [
    { kind: "encoder", side: 1, norm: "after", ends_with_norm: false, blocks: [BLOCK] },
    { kind: "decoder", side: 0, norm: "after", ends_with_norm: false, blocks: [CROSSED] },
  ],
  steps: [],
  next: {},
};

test("places are in the order of the computation", () => {
  const end = ["logits", "softmax", "draw"];
  assert.deepEqual(placesOf(GPT), ["tokens", "embedding", "self.0", "self.1", "norm", ...end]);
  const source = ["source", "source_embedding", "encoder.0"];
  assert.deepEqual(placesOf(TRANSLATOR), [...source, "tokens", "embedding", "decoder.0", ...end]);
  assert.equal(placesOf({ ...GPT, next: null }).at(-1), "output");
});

test("the norm of a block is before its part, or after the sum", () => {
  const parts = (stack) => placesInside(stack, 0).slice(0, 3).map((place) => place.split(".")[2]);
  assert.deepEqual(parts(GPT.stacks[0]), ["norm_attention", "attention", "add_attention"]);
  assert.deepEqual(parts(TRANSLATOR.stacks[0]), ["attention", "add_attention", "norm_attention"]);
  assert.equal(placesInside(TRANSLATOR.stacks[1], 0).length, 9);
  assert.deepEqual(parts({ ...GPT.stacks[0], norm: null }), ["attention", "add_attention", "feed_forward"]);
});

test("a place is taken apart, and has a name", () => {
  const { layer, part, action } = placeOf(GPT, "self.1.norm_feed_forward");
  assert.deepEqual([layer, part.name, action], [1, "feed_forward", "norm"]);
  assert.equal(placeOf(GPT, "self.1").action, null);
  const names = ["self.1", "self.1.feed_forward", "self.1.add_attention", "norm"].map((place) => placeName(GPT, place));
  assert.deepEqual(names, ["block 1", "feed-forward", "add", "last norm"]);
  assert.equal(placeName(TRANSLATOR, "decoder.0.cross_attention"), "cross-attention");
});

test("a place of an address is one of the model", () => {
  assert.equal(within(GPT, "self.1.attention"), "self.1.attention");
  assert.equal(within(GPT, "self.1.cross_attention"), "self.1");
  for (const odd of [null, "", "self.9", "self.9.attention", "encoder.0", "nothing"]) {
    assert.equal(within(GPT, odd), "tokens", String(odd));
  }
  assert.equal(level(GPT, "self.0.attention").length, 6);
  assert.deepEqual(level(GPT, "self.0"), placesOf(GPT));
});

test("places of the source belong to its stack", () => {
  assert.deepEqual(["source", "encoder.0", "decoder.0", "logits"].map((at) => ofSource(TRANSLATOR, at)), [
    ...[true, true],
    ...[false, false],
  ]);
  assert.equal(stackAt(TRANSLATOR, "source_embedding").kind, "encoder");
  assert.equal(stackAt(TRANSLATOR, "embedding").kind, "decoder");
});

test("numbers are short", () => {
  assert.deepEqual([0, -1.2345, 123456, 0.00012, null].map(brief), ["0", "−1.23", "1.2e+5", "1.2e−4", "not finite"]);
});
