import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation, linkedMessages } from "../../src/qkv/serving/web/conversation.js";

const user = (content) => ({ role: "user", content });
const assistant = (content, more = {}) => ({ role: "assistant", content, ...more });

test("an edit is a branch beside the old one, with its own answers", () => {
  const first = new Conversation().add(-1, user("a")).add(0, assistant("b")).add(1, user("c"));
  const edited = first.add(-1, user("d")).add(3, assistant("e"));
  assert.deepEqual(edited.messages(), [user("d"), assistant("e")]);
  assert.deepEqual(edited.branches(3), [0, 3]);
  const back = edited.choose(0);
  assert.deepEqual(back.messages(), [user("a"), assistant("b"), user("c")]);
  assert.deepEqual(back.messages(1), [user("a"), assistant("b")]);
  assert.deepEqual(first.path, [0, 1, 2]); // nothing is changed in place
  assert.equal(new Conversation().last, -1);
});

test("a longer answer replaces its node, and keeps what follows", () => {
  const talk = Conversation.of([user("a"), assistant("b"), user("c")]);
  const longer = talk.replace(1, assistant("bb"));
  assert.deepEqual(longer.messages(), [user("a"), assistant("bb"), user("c")]);
  assert.equal(talk.nodes[1].content, "b");
});

test("what is stored is bounded: first without alternatives, then only what is shown", () => {
  const stored = new Map();
  globalThis.sessionStorage = { setItem: (name, text) => stored.set(name, text), getItem: (name) => stored.get(name) };
  const tokens = [{ id: 1, text: "b", alternatives: [{ id: 2, text: "c" }] }];
  const talk = Conversation.of([user("a")]).add(0, assistant("b", { tokens }));
  talk.store();
  assert.deepEqual(Conversation.stored(), talk);
  const many = [{ ...tokens[0], alternatives: [{ id: 2, text: "c".repeat(2e6) }] }];
  talk.replace(1, { tokens: many }).store();
  assert.deepEqual(Conversation.stored().nodes[1].tokens, [{ id: 1, text: "b" }]);
  talk.replace(1, { tokens: [{ id: 1, text: "b".repeat(2e6) }] }).store();
  assert.deepEqual(Conversation.stored().messages(), talk.messages());
  assert.equal(Conversation.stored().nodes[1].tokens, undefined);
});

test("a link with anything else than messages is an empty conversation", () => {
  assert.deepEqual(linkedMessages(""), []);
  assert.deepEqual(linkedMessages("[null, 3, {\"role\": \"system\", \"content\": \"a\"}]"), []);
  assert.deepEqual(linkedMessages(JSON.stringify([user("a")])), [user("a")]);
});
