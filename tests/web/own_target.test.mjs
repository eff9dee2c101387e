import assert from "node:assert/strict";
import { test } from "node:test";
import { withOwnTarget } from "../../src/qkv/serving/web/own_target.js";

const DATA = { text: 1, sides: [{ ids: [7, 8] }, { ids: [1, 5, 6] }] };
const BODY = { model: "translator", source: "the cat" };

/** A server whose text "a b" has these ids; returns the requests. */
function served(ids) {
  const requests = [];
  globalThis.fetch = async (path, { body }) => {
    const request = JSON.parse(body);
    requests.push([path, request]);
    const reply = request.ids ? { text: "a b" } : { tokens: ids.map((id) => ({ id })) };
    return /** @type {any} */ ({ ok: true, json: async () => reply });
  };
  return requests;
}

test("further requests have the translation as their target, which is asked for once", async () => {
  const requests = served([5, 6]);
  const further = withOwnTarget(BODY, DATA);
  assert.deepEqual(requests, []);
  assert.deepEqual(await further(), { ...BODY, target: "a b" });
  assert.deepEqual(await further(), { ...BODY, target: "a b" });
  assert.deepEqual(
    requests.map(([, request]) => request),
    [{ model: "translator", ids: [5, 6] }, { model: "translator", text: "a b" }],
  );
});

test("a text that has other tokens is no target", async () => {
  served([5, 9]);
  assert.deepEqual(await withOwnTarget(BODY, DATA)(), BODY);
});

test("other texts, and a target that is given, stay as they are", async () => {
  const requests = served([5, 6]);
  for (const body of [{ model: "gpt", text: [1, 5] }, { ...BODY, target: "c" }]) {
    assert.equal(await withOwnTarget(body, DATA)(), body);
  }
  assert.deepEqual(requests, []);
});
