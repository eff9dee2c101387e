import assert from "node:assert/strict";
import { test } from "node:test";
import { summaryOf } from "../../src/qkv/serving/web/effect.js";

const MOVED = "The next token's distribution moved by 0.250 nats (KL divergence).";

test("the summary says in which direction the text moved, or that it did not", () => {
  const told = (change) => summaryOf({ kl: 0.25, change, count: 4 }, 0);
  assert.equal(told(-1.234), `${MOVED} The text became less likely: −1.23 nats in all.`);
  assert.equal(told(0.5), `${MOVED} The text became more likely: +0.50 nats in all.`);
  for (const none of [0, -0.001, 0.004]) assert.equal(told(none), `${MOVED} The text is as likely as before.`);
  assert.equal(told(null), MOVED);
});

test("the summary of a long text says what is left out", () => {
  const told = (change) => summaryOf({ kl: 0.25, change, count: 512 }, 188);
  const cut = `${MOVED} The text is long: its first 188 tokens are left out.`;
  assert.equal(told(-2), `${cut} Its last 512 tokens became less likely: −2.00 nats in all.`);
  assert.equal(told(0), `${cut} Its last 512 tokens are as likely as before.`);
});
