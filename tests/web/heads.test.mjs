import assert from "node:assert/strict";
import { test } from "node:test";
import { ordered, patternOf, sentenceOf } from "qkv/head_patterns.js";
import { HEAD_STATE, readHeadState, withinHeads, writeHeadState } from "qkv/head_state.js";
import { toldLeftOut, withoutColumns } from "qkv/left_out.js";
import { CODES, Matrix } from "qkv/matrix.js";
import { meanOf } from "qkv/shown_matrix.js";
import { tileLayout } from "qkv/tile_layout.js";

const SIDE = { tokens: ["The", " cat", " sat"] };
const ATTENTION = {
  depth: 2,
  heads: 2,
  patterns: [[["first", 0.9, null], null], [["subject", 0.68, 1], ["previous", 0.7, null]]],
  sentences: { subject: "Nearly every token looks at “{token}” (mean {share}): a subject head." },
  telling: [2, 3, 1, 0],
  sinks: [0],
  sunk: [[0.8, 0.4], [0.2, 0.6]],
};

function matrix(rows) {
  const numbers = Uint16Array.from(rows.flat(), (weight) => Math.round(65535 * weight));
  const size = { rows: rows.length, columns: rows[0].length };
  return new Matrix(size.rows, size.columns, { ...size, numbers }, CODES.linear16);
}

function near(values, expected) {
  assert.equal(values.length, expected.length);
  [...values].forEach((value, index) => assert.ok(Math.abs(value - expected[index]) < 1e-4, `${value} ${expected}`));
}

test("left-out columns are empty and each row sums to 1 again", async () => {
  const rest = await withoutColumns(matrix([[1, 0, 0], [0.6, 0.4, 0], [0.5, 0.3, 0.2]]), new Set([0]));
  near(rest.row(0), [0, 0, 0]);
  near(rest.row(1), [0, 1, 0]);
  near(rest.row(2), [0, 0.6, 0.4]);
});

test("the mean of heads", async () => {
  const mean = await meanOf([matrix([[1, 0], [0.2, 0.8]]), matrix([[1, 0], [0.6, 0.4]])]);
  near(mean.row(1), [0.4, 0.6]);
});

test("names, sentences and the share that is left out", () => {
  const pattern = patternOf(ATTENTION, SIDE, 1, 0);
  assert.equal(sentenceOf(ATTENTION, pattern), "Nearly every token looks at “cat” (mean 68%): a subject head.");
  assert.equal(patternOf(ATTENTION, SIDE, 0, 1), null);
  const sentences = { ...ATTENTION.sentences, first: "first {share}", previous: "before {share}" };
  const measured = { ...ATTENTION, sentences, measured: ["subject", "first"] };
  const told = (layer, head) => sentenceOf(measured, patternOf(measured, SIDE, layer, head));
  assert.deepEqual([told(0, 0), told(1, 1)], ["first 90% in the measured texts", "before 70%"]);
  assert.equal(told(1, 0), "Nearly every token looks at “cat” (mean 68%): a subject head.");
  const state = { ...HEAD_STATE, without: true, layer: 1, head: 1 };
  assert.equal(toldLeftOut(ATTENTION, SIDE, state), "Left out: “The” takes 60% of the weight of this head.");
  const all = toldLeftOut(ATTENTION, SIDE, state, true);
  assert.equal(all, "Left out: “The” takes 50% of the weight of all heads.");
});

test("heads in their orders", () => {
  assert.deepEqual(ordered(ATTENTION, "layer"), [[0, 0], [0, 1], [1, 0], [1, 1]]);
  assert.deepEqual(ordered(ATTENTION, "telling"), [[1, 0], [1, 1], [0, 1], [0, 0]]);
  assert.deepEqual(ordered(ATTENTION, "name"), [[1, 0], [1, 1], [0, 0], [0, 1]]);
});

test("an address keeps the state of heads, and nothing that does not exist", () => {
  const state = { ...HEAD_STATE, without: true, mean: "all", compare: [1, 0], least: 12, sort: "name" };
  const parts = new URLSearchParams("view=head");
  writeHeadState(state, parts);
  assert.deepEqual(readHeadState(parts, HEAD_STATE), state);
  assert.deepEqual(readHeadState(new URLSearchParams("view=head"), state), HEAD_STATE);
  const odd = readHeadState(new URLSearchParams("view=head&compare=9.9&only=other&least=-3&mean=x"), HEAD_STATE);
  assert.deepEqual({ ...odd, ...withinHeads(odd, ATTENTION) }, HEAD_STATE);
});

test("tiles are as large as the screen allows", () => {
  for (const [layers, heads] of [[30, 9], [12, 12], [24, 16], [1, 2]]) {
    const room = { width: 1030, height: 600, ratio: 1, caption: 13 };
    const { blocks, deep, size } = tileLayout({ layers, heads, ...room });
    assert.ok(blocks * deep >= layers && size >= 20, `${layers} x ${heads}: ${size}`);
    assert.ok(blocks * (22 + 4 + heads * (size + 4)) <= room.width);
    assert.ok(18 + 4 + deep * (size + 4 + 13) <= room.height);
  }
  const narrow = tileLayout({ layers: 30, heads: 9, width: 366, height: Infinity, ratio: 1, caption: 13 });
  assert.equal(narrow.blocks, 1);
  assert.ok(22 + 4 + 9 * (narrow.size + 4) <= 366);
});
