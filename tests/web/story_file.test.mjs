import assert from "node:assert/strict";
import { test } from "node:test";
import { changesTo, readStory, stateAt, writeStory } from "qkv/story_file.js";

const FIRST = { view: "heads", layer: 0, head: 0, token: null, kept: [], words: false };

test("a story is read as it was written", () => {
  const steps = [
    { caption: 'quotes " and \\ and\ntwo lines', view: "head", layer: 3, words: true },
    { caption: "", kept: [[0, 1], [2, 2]], compare: [1, 0], token: "none" },
  ];
  const story = { title: "Cats # not a comment", model: "a model", text: "the\tcat\u007f", steps };
  assert.deepEqual(readStory(writeStory(story)), story);
});

test("a story that a person wrote", () => {
  const story = readStory(`# a comment
title = 'plain'   # another
[[ step ]]
caption = """
Two
"lines\\u2026" """
layer = -1
kept = [[0, 1],]
`);
  assert.equal(story.title, "plain");
  assert.deepEqual(story.steps, [{ caption: 'Two\n"lines…" ', layer: -1, kept: [[0, 1]] }]);
});

test("an error names the line", () => {
  assert.throws(() => readStory("title = cats"), /Line 1: expected a text in quotation marks/);
  assert.throws(() => readStory("[[step]]\nlayer: 1"), /Line 2: expected key = value/);
  assert.throws(() => readStory("title = 'x'"), /no story/);
});

test("what a step does not name stays, and none clears", () => {
  const steps = [{ caption: "a", layer: 2, token: 1 }, { caption: "b", view: "head" }, { caption: "c", token: "none" }];
  assert.deepEqual(stateAt(steps, 1, FIRST), { ...FIRST, view: "head", layer: 2, token: 1 });
  const last = stateAt(steps, 2, FIRST);
  assert.equal(last.token, null);
  assert.deepEqual(changesTo(last, stateAt(steps, 1, FIRST)), { token: "none" });
});
