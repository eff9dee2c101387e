import assert from "node:assert/strict";
import { test } from "node:test";
import { columnNames, rankedParts, signed } from "qkv/logit_parts.js";

const PARTS = {
  heads: 2,
  cross: 1,
  positions: [
    { token: "a", total: 1, embedding: 0.5, positional: -0.25, bias: 0, layers: [[1, -3, 0.1, 0, 2]] },
  ],
};

test("columns are the heads, the heads of cross-attention, the bias and the feed-forward layer", () => {
  assert.deepEqual(
    columnNames(PARTS).map(({ short }) => short),
    ["0", "1", "×0", "bias", "FF"],
  );
});

test("parts are ranked by their size, and heads can be opened", () => {
  const ranked = rankedParts(PARTS, 0);
  assert.deepEqual(
    ranked.slice(0, 3).map(({ name, value }) => [name, value]),
    [["head 0.1", -3], ["feed-forward 0", 2], ["head 0.0", 1]],
  );
  assert.deepEqual([ranked[0].layer, ranked[0].head, ranked[1].head], [0, 1, null]);
  assert.equal(ranked.length, 3 + 5);
});

test("numbers have a sign", () => {
  assert.deepEqual([signed(1.234), signed(-0.5), signed(0)], ["+1.23", "−0.50", "+0.00"]);
});
