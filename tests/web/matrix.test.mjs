import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { CODES, Matrix, decode, inflate, joined } from "qkv/matrix.js";

const WEIGHTS = [
  [1, 0, 0, 0],
  [0.25, 0.75, 0, 0],
  [0.5, 0.125, 0.375, 0],
  [0.1, 0.2, 0.3, 0.4],
];

function matrix() {
  const numbers = Uint16Array.from(WEIGHTS.flat(), (weight) => Math.round(weight * 65535));
  return decode(new Uint8Array(numbers.buffer), "linear16", [4, 4]);
}

const near = (one, other, by = 2e-5) => assert.ok(Math.abs(one - other) <= by, `${one} is not ${other}`);

test("bytes of zlib are decoded to the weights", async () => {
  const bytes = Uint8Array.from([0, 51, 255]);
  assert.deepEqual(await inflate(deflateSync(bytes)), bytes);
  const roots = decode(bytes, "root8", [1, 3], 2);
  [0, 0.08, 2].forEach((weight, column) => near(roots.value(0, column), weight, 1e-6));
  WEIGHTS.forEach((row, number) => row.forEach((weight, column) => near(matrix().value(number, column), weight)));
});

test("the largest weights of a row come first", () => {
  assert.deepEqual(
    matrix()
      .strongest(3, 2)
      .map(([column]) => column),
    [3, 2],
  );
  assert.equal(matrix().strongest(0, 9).length, 1); // a weight of 0 is not listed
});

test("to a word weights are summed, from a word they are averaged", async () => {
  const words = [["a", [0]], ["bc", [1, 2]], ["d", [3]]];
  const result = await joined(matrix(), words, words);
  const expected = [
    [1, 0, 0],
    [0.375, 0.625, 0],
    [0.1, 0.5, 0.4],
  ];
  expected.forEach((row, number) => row.forEach((weight, column) => near(result.value(number, column), weight)));
});

test("a halved matrix keeps its largest weight", async () => {
  const numbers = new Uint8Array(700 * 700);
  numbers[300 * 700 + 500] = 255;
  const large = await new Matrix(700, 700, { rows: 700, columns: 700, numbers }, CODES.root8).halve();
  assert.deepEqual(
    large.levels.map(({ rows }) => rows),
    [700, 350, 175],
  );
  for (const { numbers: level } of large.levels) assert.ok(level.includes(255));
  assert.equal(large.level(2), large.levels[0]);
  assert.equal(large.level(0.25), large.levels[2]);
});
