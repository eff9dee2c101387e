// @ts-check
// The text of a link, as the model reads it again: each token with the heads off that were off when it was generated.

import { GeneratedText, parseIds } from "./generated_text.js";
import { offOfEach } from "./heads_then.js";
import { readTokens } from "./read_tokens.js";
import { headsOff } from "./settings.js";

/** `on` and `heads` are those of the link (see settings.js), `text` the fields of a new text. */
export async function readLinkedText(on, heads, text, logprobs, signal) {
  const [before, after] = parseIds(on).map((ids) => ids.map((id) => parseInt(id, 10)));
  const offs = offOfEach(heads, after.length, text.off);
  const readings = new Map();
  for (const off of new Set([...offs, text.off])) {
    const how = { off: headsOff({ off }), logprobs, signal };
    readings.set(off, await readTokens(text.model, [...before, ...after], how));
  }
  const tokens = readings.get(text.off).map((token, index) => {
    const off = offs[index - before.length];
    return off === undefined ? token : { ...readings.get(off)[index], off };
  });
  return GeneratedText.fromLink(on, tokens, { ...text, off: offs.at(-1) ?? text.off });
}
