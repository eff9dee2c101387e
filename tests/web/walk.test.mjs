import assert from "node:assert/strict";
import { test } from "node:test";
import { Store } from "qkv/store.js";
import { UNEDITED, editsFrom, editsText, headRow, listed, scoreAtDistance } from "qkv/walk_data.js";
import { distances, drawnDistances } from "qkv/walk_distance.js";
import { alike, cosine, mixture, reweighted, runningSums, softmax, turned } from "qkv/walk_math.js";

function near(values, expected) {
  assert.equal(values.length, expected.length);
  [...values].forEach((value, i) => assert.ok(Math.abs(value - expected[i]) < 1e-9, `${[...values]} ${expected}`));
}

const VECTORS = [[1, 0.5], [-0.25, 2], [0.75, -1]];
const SEEN = [[1, 0, 0], [1, 1, 0], [1, 1, 1]];
const HEAD = {
  ...{ score: "scaled_dot", divisor: Math.SQRT2, query: VECTORS, key: VECTORS, value: VECTORS, output: VECTORS },
  ...{ visible: SEEN, bias: null, additive: null },
};

const ANGLES = [0.5];
const ROTARY = {
  ...HEAD,
  query: VECTORS.map((vector, at) => turned(vector, ANGLES, at)),
  key: VECTORS.map((vector, at) => turned(vector, ANGLES, at)),
  rotary: { query: VECTORS, key: VECTORS, frequencies: ANGLES },
};

// The bias of query t at distance d is 10 t + d, for the distances -2 to 2.
const BY_DISTANCE = [0, 1, 2].map((token) => [-2, -1, 0, 1, 2].map((distance) => 10 * token + distance));
const RELATIVE = {
  ...HEAD,
  score: "relative",
  bias: [0, 1, 2].map((token) => [0, 1, 2].map((at) => 10 * token + token - at)),
  by_distance: { first: -2, bias: BY_DISTANCE },
};
const ALIBI = {
  ...HEAD,
  slope: 0.5,
  bias: [0, 1, 2].map((token) => [0, 1, 2].map((at) => -0.5 * Math.abs(token - at))),
};

test("softmax, mixtures and weights that are set by hand", () => {
  near(softmax([0, Math.log(3), -Infinity]), [0.25, 0.75, 0]);
  near(softmax([-Infinity, -Infinity]), [0, 0]);
  near(softmax([1000, 1000]), [0.5, 0.5]);
  assert.equal(alike([0.5, 0.5, 0]), 2);
  near(mixture([0.5, 0.25], [[2, 4], [4, 8]], 2), [2, 4]);
  near(reweighted([0.5, 0.25, 0.25], 0, 0.8, [true, true, true]), [0.8, 0.1, 0.1]);
  near(reweighted([1, 0, 0], 0, 0.4, [true, true, false]), [0.4, 0.6, 0]);
  near(reweighted([1, 0], 0, 0.4, [true, false]), [1, 0]);
  near(runningSums([1, 2, 3]), [1, 3, 6]);
  assert.equal(cosine([0, 0], [1, 2]), 0);
  near(turned([1, 0], [Math.PI / 2], 1), [0, 1]);
});

test("a row is the attention of one query", () => {
  const { rows, weights, output } = headRow(HEAD, 1);
  const scores = [0, 1].map((at) => (VECTORS[1][0] * VECTORS[at][0] + VECTORS[1][1] * VECTORS[at][1]) / Math.SQRT2);
  near(rows.map(({ score }) => score).slice(0, 2), scores);
  assert.equal(rows[2].score, -Infinity);
  near(weights, [...softmax(scores), 0]);
  near(output, [0, 1].map((i) => weights[0] * VECTORS[0][i] + weights[1] * VECTORS[1][i]));
  const swapped = headRow(HEAD, 1, { ...UNEDITED, swapped: [[0, 1]] });
  near(swapped.rows.slice(0, 2).map(({ score }) => score), [...scores].reverse());
  assert.deepEqual([...listed([0.1, 0.5, 0, 0.4], 2, 2)], [1, 3]);
});

test("an address keeps edits, and has none that the head cannot take", () => {
  const edits = { ...UNEDITED, divisor: 1.5, lifted: true, swapped: [[0, 2]], moved: { 1: -7 } };
  assert.equal(editsText(edits), "d1.5 m s0-2 v1_-7");
  assert.deepEqual(editsFrom(editsText(edits), 3), edits);
  for (const odd of ["s1.5-2", "s1-3", "s1-1", "s1--2", "v1.5_2", "v3_1", "v1_", "d", "d0", "d1e400", "d99999", "m1", "x"]) {
    assert.equal(editsFrom(odd, 3), UNEDITED, odd);
  }
  assert.deepEqual(editsFrom("v1_-30000000 v2_30000000", 3).moved, { 1: -4096, 2: 4096 });
});

test("the curve has few points, among them both ends and the distance now", () => {
  assert.deepEqual(drawnDistances(0, 3, 1), [0, 1, 2, 3]);
  const many = drawnDistances(0, 4098, 1777);
  assert.ok(many.length < 210 && [0, 1777, 4098].every((distance) => many.includes(distance)));
  assert.deepEqual(distances(RELATIVE, 1), [0, 2]);
});

test("the score at a distance is that of the table", () => {
  for (const [name, walk] of Object.entries({ ROTARY, RELATIVE, ALIBI })) {
    for (const divisor of [null, 0.5]) {
      for (const position of [-40, -1, 0, 1, 2, 40]) {
        const edits = { ...UNEDITED, divisor, swapped: [[0, 2]], moved: { 1: position } };
        const { score } = headRow(walk, 2, edits).rows[1];
        near([scoreAtDistance(walk, 2, 1, 2 - position, { ...edits, moved: {} })], [score]);
      }
      const plain = headRow(walk, 2, { ...UNEDITED, divisor }).rows[1].score;
      near([scoreAtDistance(walk, 2, 1, 1, { ...UNEDITED, divisor })], [plain], name);
    }
  }
});

test("a changed divisor divides the bias of relative positions, which is the nearest that is known", () => {
  const biasAt = (position) => headRow(RELATIVE, 2, { ...UNEDITED, divisor: 1, moved: { 0: position } }).rows[0].bias;
  near([1, 2, -5, 90].map(biasAt), [21, 20, 22, 18].map((bias) => bias * Math.SQRT2));
  near([headRow(ALIBI, 2, { ...UNEDITED, divisor: 1 }).rows[0].bias], [-1]);
});

test("a part that could not be read is read again", async () => {
  let calls = 0;
  const part = async (name) => {
    calls += 1;
    if (calls === 1) throw new Error("lost");
    return name;
  };
  const store = new Store({ data: {}, part });
  await assert.rejects(store.part("walk.self.0.0"), /lost/);
  assert.equal(await store.part("walk.self.0.0"), "walk.self.0.0");
  await store.part("walk.self.0.0");
  assert.equal(calls, 2);
});
