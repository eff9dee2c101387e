// @ts-check
// A text as the model reads it: its tokens with their log-probabilities, without generating.

import { fetchJson } from "./api.js";

/**
 * The tokens of a text or of ids; `off` are heads that are switched off, `logprobs` the number of alternatives.
 * @param {string} model
 * @param {string | number[]} prompt
 * @param {{off?: string[] | number[][], logprobs?: number, signal?: AbortSignal}} [options]
 */
export async function readTokens(model, prompt, { off = [], logprobs = 0, signal } = {}) {
  const body = { model, prompt, max_tokens: 0, echo: true, logprobs, tokens: true };
  const response = await fetchJson("/v1/completions", off.length ? { ...body, heads_off: off } : body, signal);
  return response.choices[0].tokens;
}

/**
 * The text that each token has after those before it: one token alone may be only a part of a character.
 * @param {string} model
 * @param {number[]} ids
 * @param {AbortSignal} [signal]
 * @returns {Promise<string[]>}
 */
export async function readTexts(model, ids, signal) {
  const { tokens } = await fetchJson("/v1/tokenize", { model, ids }, signal);
  return tokens.map(({ text }) => text);
}
