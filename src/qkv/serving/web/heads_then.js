// @ts-check
// Which heads were off when each token was generated, for links: "none*4;0.1 1.2*6" are four tokens and then six.

/** The heads of each token as text; "" if all are `now`, those that are off at present. */
export function offThen(tokens, now) {
  const runs = [];
  for (const { off = now } of tokens) {
    const last = runs.at(-1);
    if (last?.off === off) last.count += 1;
    else runs.push({ off, count: 1 });
  }
  if (runs.every(({ off }) => off === now)) return "";
  return runs.map(({ off, count }) => `${off || "none"}*${count}`).join(";");
}

const SETS = 8; // of heads in one text: the model reads the text once for each

/** The heads of each of `count` tokens; `now` where the text does not tell, and beyond the first 8 sets of heads. */
export function offOfEach(text, count, now) {
  const each = text
    .split(";")
    .map((run) => /^(none|[\d. ]+)\*(\d{1,6})$/.exec(run))
    .filter(Boolean)
    .flatMap(([, off, times]) => Array(Math.min(count, Number(times))).fill(off === "none" ? "" : off));
  const sets = new Set([...new Set(each.slice(0, count))].slice(0, SETS));
  return Array.from({ length: count }, (_, index) => (sets.has(each[index]) ? each[index] : now));
}
