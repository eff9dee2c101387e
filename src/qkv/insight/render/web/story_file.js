// @ts-check
// A story as a file: TOML with a title, a text, and steps, each a caption and a state of the page.

import { VIEWS } from "qkv/state.js";

const STATE = [
  ...["view", "kind", "layer", "head", "words", "token", "kept", "step", "place", "edits", "scale", "glance", "theme"],
  ...["without", "sums", "mean", "compare", "difference", "least", "sort", "only"],
];
const CLEARED = ["token", "place", "mean", "compare", "only"]; // what "none" clears
const LINE = /^([\w-]+)\s*=\s*(.*)$/;

/**
 * @typedef {{caption: string} & Record<string, any>} StoryStep
 * @typedef {{title: string, model?: string | null, text?: string | null, steps: StoryStep[]}} StoryData
 */

/** The state of a step: what a step does not name stays as in the step before. */
export function stateAt(steps, index, first) {
  let state = first;
  for (const { caption, ...changes } of steps.slice(0, index + 1)) {
    for (const key of CLEARED) if (changes[key] === "none") changes[key] = null;
    state = { ...state, ...changes };
  }
  return state;
}

/** What a step has to say so that this state follows the one before. */
export function changesTo(state, before) {
  const changes = {};
  for (const key of STATE) {
    if (JSON.stringify(state[key]) === JSON.stringify(before[key]) || state[key] === undefined) continue;
    if (state[key] === null && !CLEARED.includes(key)) continue;
    changes[key] = state[key] ?? "none";
  }
  return changes;
}

/** The story as TOML. */
export function writeStory({ title, model, text, steps }) {
  const lines = [];
  for (const [key, value] of Object.entries({ title, model, text })) if (value) lines.push(`${key} = ${quote(value)}`);
  for (const step of steps) {
    lines.push("", "[[step]]");
    for (const [key, value] of Object.entries(step)) {
      lines.push(`${key} = ${typeof value === "string" ? quote(value) : JSON.stringify(value)}`);
    }
  }
  return `${lines.join("\n")}\n`;
}

/** A text in quotation marks; TOML has no half of a surrogate pair, and escapes what cannot be seen. */
function quote(text) {
  const whole = text.replace(/\p{Surrogate}/gu, "\ufffd");
  return JSON.stringify(whole).replace(/\u007f/g, "\\u007f");
}

/**
 * Reads a story; an error is a sentence that names the line or the step.
 * @returns {StoryData}
 */
export function readStory(file) {
  const story = { title: "", steps: [] };
  /** @type {Record<string, any>} */
  let table = story;
  const lines = file.split(/\r?\n/);
  for (let number = 0; number < lines.length; number++) {
    const line = lines[number].trim();
    if (line === "" || line.startsWith("#")) continue;
    if (/^\[\[\s*step\s*\]\]\s*(#.*)?$/.test(line)) {
      table = { caption: "" };
      story.steps.push(table);
      continue;
    }
    const [, key, begin] = LINE.exec(line) ?? [];
    if (!key) throw new Error(`Line ${number + 1}: expected key = value or [[step]], not ${line.slice(0, 40)}`);
    let value = begin;
    const closed = () => !/^("""|''')/.test(value) || value.slice(3).includes(value.slice(0, 3));
    while (!closed() && number + 1 < lines.length) value += `\n${lines[++number]}`;
    table[key] = valueOf(value, number + 1);
  }
  if (!story.steps.length) throw new Error("This file has no story: expected [[step]] and a caption");
  return story;
}

/** A text, a number, true or false, or a list of numbers. */
function valueOf(text, line) {
  const long = /^("""|''')\n?([^]*?)\1\s*(#.*)?$/.exec(text);
  const short = /^("(?:[^"\\]|\\.)*")\s*(#.*)?$/.exec(text) ?? /^'([^']*)'\s*(#.*)?$/.exec(text);
  const plain = /^(true|false|-?\d+|\[[\d\s,[\]-]*\])\s*(#.*)?$/.exec(text);
  try {
    if (long) return long[1] === '"""' ? unescaped(long[2]) : long[2];
    if (short) return short[1].startsWith('"') ? JSON.parse(short[1]) : short[1];
    if (plain) return JSON.parse(plain[1].replace(/,\s*\]/g, "]"));
  } catch {
    // the same error as for anything else
  }
  throw new Error(`Line ${line}: expected a text in quotation marks, a number, true, false or a list`);
}

/** A text of several lines: a backslash at the end of a line joins it to the next. */
function unescaped(text) {
  const joined = text.replace(/\\\n\s*/g, "").replace(/\n/g, "\\n").replace(/(?<!\\)"/g, '\\"');
  return JSON.parse(`"${joined}"`);
}

/** Throws a sentence if the page has not what a step shows. */
export function checkStory({ steps }, data, first) {
  let { kind } = first;
  steps.forEach((step, index) => {
    const fail = (text) => {
      throw new Error(`Step ${index + 1}: ${text}`);
    };
    kind = step.kind ?? kind;
    const attention = data.attention.find((one) => one.kind === kind);
    if (step.kind && !attention) fail(`there is no ${step.kind} attention`);
    for (const key of Object.keys(step)) if (key !== "caption" && !STATE.includes(key)) fail(`unknown key ${key}`);
    if ("view" in step && !VIEWS.includes(step.view)) fail(`view: expected ${VIEWS.join(", ")}, not ${step.view}`);
    if (step.view in data.lacking) fail(`view: ${step.view} is not on this page. ${data.lacking[step.view]}`);
    const longest = Math.max(...data.sides.map(({ tokens }) => tokens.length));
    const counts = { layer: attention?.depth ?? 0, head: attention?.heads ?? 0, token: longest };
    for (const [key, count] of Object.entries(counts)) {
      if (!(key in step) || (key === "token" && step[key] === "none")) continue;
      const fits = Number.isInteger(step[key]) && step[key] >= -count && step[key] < count;
      if (!fits) fail(`${key}: expected 0 to ${count - 1}, or -1 for the last, not ${step[key]}`);
      if (step[key] < 0) step[key] += count;
    }
  });
}
