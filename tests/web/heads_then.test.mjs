import assert from "node:assert/strict";
import { test } from "node:test";

import { offOfEach, offThen } from "../../src/qkv/serving/web/heads_then.js";

const tokens = (...offs) => offs.map((off) => ({ off }));

test("a text of the heads that are off now needs no word about them", () => {
  assert.equal(offThen(tokens("0.1", "0.1"), "0.1"), "");
  assert.equal(offThen([], "0.1"), "");
  assert.equal(offThen([{}, {}], "0.1"), ""); // a text of an earlier version
});

test("the heads of each token survive a link", () => {
  const offs = ["", "", "0.1", "0.1 1.2", "0.1 1.2", ""];
  const text = offThen(tokens(...offs), "3.0");
  assert.equal(text, "none*2;0.1*1;0.1 1.2*2;none*1");
  assert.deepEqual(offOfEach(text, offs.length, "3.0"), offs);
});

test("a link has few sets of heads, since each is a request", () => {
  const many = Array.from({ length: 40 }, (_, head) => `0.${head}`);
  const offs = offOfEach(many.map((off) => `${off}*1`).join(";"), 40, "3.0");
  assert.deepEqual(offs, many.map((off, index) => (index < 8 ? off : "3.0")));
});

test("a damaged link falls back to the heads that are off now", () => {
  assert.deepEqual(offOfEach("none*x;0.1*999999999;<b>*1", 2, "3.0"), ["3.0", "3.0"]);
  assert.deepEqual(offOfEach("none*1", 3, "3.0"), ["", "3.0", "3.0"]);
  assert.deepEqual(offOfEach("none*9", 2, "3.0"), ["", ""]);
});
