// @ts-check
// All settings as the end of the page's address: a link or a reload restores them.

/** Texts to look at: a reference, a repetition, a word with two senses; and for a translator from English. */
export const EXAMPLES = {
  text: [
    "The cat sat on the mat because it was tired",
    "The blue lamp costs ten crowns. The blue lamp costs",
    "He sat on the river bank, then took his money to the bank",
  ],
  source: ["cats chase mice", "the tired duck did not chase the lazy soldier", "the sad horse chased cats"],
};

export const DEFAULTS = {
  tab: "look",
  model: "",
  look_text: EXAMPLES.text[0], // to look at
  look_source: EXAMPLES.source[0], // the same for a translator
  look_target: "", // "" for its own translation
  added: "", // ids of tokens after the text to look at, as "1.2.3"
  prompt: "",
  temperature: 0.8,
  top_k: 0, // 0 keeps all tokens
  top_p: 0.95,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  max_tokens: 48,
  seed: 0,
  stop: "", // one per line
  off: "", // heads that are switched off, as layer.head: "3.5 2.0"
  strength: 0, // of these heads in the measured effect: 0 is off, 1 unchanged
  steer: "", // steering, as JSON: {from, to, layer, strength}
  build: "", // the prompt builder's parts, as JSON
  text: "", // to translate
  beams: 4,
  best: 3,
  masked: "I took my [mask] for a walk.",
  guesses: 5,
  said: "", // to classify: texts, as JSON
  system: "",
  talk: "", // messages, as JSON
  think: false, // whether the view inside the model is open
  look: "", // the state of its attention page
  theme: "",
  run: false, // in a copied link: request the result when it is opened
  on: "", // in a copied link: ids of an edited text, "1.2_3.4*": prompt, generated, * chosen by hand
  on_off: "", // in a copied link: the heads that were off when this text was generated, if others are now: "none*4;0.1*6"
};

/** Reads the settings of an address; unknown names are ignored. */
export function read(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const settings = { ...DEFAULTS };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    if (!parts.has(name)) continue;
    const text = parts.get(name);
    if (typeof usual === "number") {
      if (text.trim() !== "" && Number.isFinite(Number(text))) settings[name] = Number(text);
    } else settings[name] = typeof usual === "boolean" ? text === "1" : text;
  }
  if (!["dark", "light"].includes(settings.theme)) settings.theme = "";
  return settings;
}

/** Writes the settings that differ from the defaults, and always the tab. */
export function write(settings) {
  const parts = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = settings[name];
    if (name === "tab" || (value !== usual && value !== null)) parts.set(name, value === true ? 1 : value);
  }
  return `#${parts}`;
}

const FILTERS = { top_k: 0, top_p: 1, min_p: 0 }; // neutral values, which are left out of a request
const PENALTIES = { repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };

function changedFrom(neutral, settings) {
  const changed = Object.keys(neutral).filter((name) => settings[name] !== neutral[name]);
  return Object.fromEntries(changed.map((name) => [name, settings[name]]));
}

export function penalised(settings) {
  return Object.keys(changedFrom(PENALTIES, settings)).length > 0;
}

/** The fields of a request that shape the next-token distribution. */
export function sampling(settings) {
  const off = headsOff(settings);
  const filters = changedFrom(FILTERS, settings);
  return { temperature: settings.temperature, ...filters, ...(off.length ? { heads_off: off } : {}) };
}

/** The fields of a request for a text: also penalties, length, seed and stop sequences. */
export function generation(settings) {
  const stop = stops(settings);
  return {
    ...sampling(settings),
    ...changedFrom(PENALTIES, settings),
    max_tokens: settings.max_tokens,
    seed: settings.seed,
    ...(stop.length ? { stop } : {}),
  };
}

/** The stop sequences, one per line, in which \n is a line break. */
export function stops({ stop }) {
  return stop
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
}

export function headsOff({ off }) {
  return off.split(" ").filter((head) => /^\d+\.\d+$/.test(head));
}

/** The names of heads as in all views. */
export function headNames(off) {
  return off.map((head) => head.replace(/(.+)\.(.+)/, "layer $1, head $2")).join("; ");
}

/** The JSON of a text, or `otherwise`. */
export function parsed(text, otherwise) {
  try {
    return JSON.parse(text) ?? otherwise;
  } catch {
    return otherwise;
  }
}
