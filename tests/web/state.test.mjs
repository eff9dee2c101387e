import assert from "node:assert/strict";
import { test } from "node:test";
import { HEAD_STATE } from "qkv/head_state.js";
import { VIEWS, fromHash, toHash, within } from "qkv/state.js";

const DATA = {
  attention: [{ kind: "self", depth: 4, heads: 3 }],
  sides: [{ tokens: ["a", "b", "c"] }],
  lacking: { norms: "not computed" },
};
const FIRST = within(
  {
    view: null,
    kind: "self",
    layer: 0,
    head: 0,
    words: false,
    token: null,
    kept: [],
    scale: "root",
    glance: "pattern",
    theme: null,
    step: 1,
    told: null,
    present: false,
    ...HEAD_STATE,
  },
  DATA,
);

test("an address restores the state", () => {
  const state = {
    ...FIRST,
    view: "lines",
    layer: 3,
    head: 2,
    words: true,
    token: 1,
    kept: [
      [0, 1],
      [2, 2],
    ],
    scale: "log",
    glance: "entropy",
    theme: "dark",
    sums: true,
    least: 5,
    compare: [1, 2],
  };
  const restored = fromHash(toHash(state), FIRST, DATA);
  for (const name of Object.keys(state)) assert.deepEqual(restored[name], state[name], name);
  assert.equal(toHash(restored), toHash(state));
  assert.equal(toHash(fromHash("", FIRST, DATA)), toHash(FIRST));
});

test("what the data does not have is replaced by the nearest that it has", () => {
  const far = fromHash("#view=head&layer=99&head=77&token=55&kept=0.1+9.9&scale=x&theme=y", FIRST, DATA);
  assert.deepEqual([far.layer, far.head, far.token, far.kept], [3, 2, 2, [[0, 1]]]);
  assert.deepEqual([far.scale, far.theme], [FIRST.scale, FIRST.theme]);
  assert.notEqual(fromHash("#view=norms", FIRST, DATA).view, "norms");
  assert.ok(VIEWS.includes(FIRST.view));
});
