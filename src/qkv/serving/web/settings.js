// Everything that a person chose, as the end of the page's address: a link reproduces it, and a reload loses nothing.

export const DEFAULTS = {
  tab: "write",
  model: "",
  prompt: "",
  temperature: 0.8,
  top_k: 0, // 0 leaves nothing out
  top_p: 0.95,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  max_tokens: 48,
  seed: 0,
  stop: "", // one a line
  off: "", // heads that are switched off: "3.5 2.0"
  build: "", // the prompt builder's parts, as JSON
  text: "", // to translate
  beams: 4,
  best: 3,
  masked: "I took my [mask] for a walk.",
  guesses: 5,
  said: "", // to classify: texts, as JSON
  system: "",
  talk: "", // messages, as JSON
  think: false, // whether "See it think" is open
  look: "", // what it shows
  theme: "",
  run: false, // of a copied link: the answer is asked for when it is opened
  on: "", // of a copied link: the ids of a text that cannot be made again, "1.2_3.4*": prompt, said, * chosen by hand
};

/** Names that an address may have; anything else in it is left alone and forgotten. */
export function read(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const found = { ...DEFAULTS };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    if (!parts.has(name)) continue;
    const text = parts.get(name);
    if (typeof usual === "number") {
      if (text.trim() !== "" && Number.isFinite(Number(text))) found[name] = Number(text);
    } else found[name] = typeof usual === "boolean" ? text === "1" : text;
  }
  if (!["dark", "light"].includes(found.theme)) found.theme = "";
  return found;
}

/** Only what differs from the usual, but the model by name: another server may prefer another. */
export function write(settings) {
  const parts = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = settings[name];
    if (name === "tab" || (value !== usual && value !== null)) parts.set(name, value === true ? 1 : value);
  }
  return `#${parts}`;
}

const FILTERS = { top_k: 0, top_p: 1, min_p: 0 }; // with what changes nothing, and is left out of a request
const PENALTIES = { repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };

function unless(idle, settings) {
  const changed = Object.keys(idle).filter((name) => settings[name] !== idle[name]);
  return Object.fromEntries(changed.map((name) => [name, settings[name]]));
}

export function penalised(settings) {
  return Object.keys(unless(PENALTIES, settings)).length > 0;
}

/** The fields of a request that say how the next token is chosen. */
export function sampling(settings) {
  const off = headsOff(settings);
  return { temperature: settings.temperature, ...unless(FILTERS, settings), ...(off.length ? { heads_off: off } : {}) };
}

/** The same for a text: with penalties, length, seed and stop strings. */
export function generation(settings) {
  const stop = stops(settings);
  return {
    ...sampling(settings),
    ...unless(PENALTIES, settings),
    max_tokens: settings.max_tokens,
    seed: settings.seed,
    ...(stop.length ? { stop } : {}),
  };
}

/** One a line, in which \n stands for a line break. */
export function stops({ stop }) {
  return stop
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
}

export function headsOff({ off }) {
  return off.split(" ").filter((each) => /^\d+\.\d+$/.test(each));
}

/** As heads are called everywhere. */
export function headNames(off) {
  return off.map((each) => each.replace(/(.+)\.(.+)/, "layer $1, head $2")).join("; ");
}

export function parsed(text, otherwise) {
  try {
    return JSON.parse(text) ?? otherwise;
  } catch {
    return otherwise;
  }
}
