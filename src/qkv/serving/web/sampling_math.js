// @ts-check
// The sampling parameters applied to the likeliest tokens in the browser: the arithmetic of qkv.generation.sampling.
//
// The page knows the probabilities of the likeliest tokens, and of all others their sum and number alone. Where the
// result depends on how that sum is spread, it is an estimate (`exact` is false), and the server has to be asked.

const NEGLIGIBLE = 1e-4; // a change of a probability that no page shows

/** The weights of the others at a temperature, relative to the likeliest token: least, most, and an estimate. */
function tailWeight(known, rest, others, temperature) {
  if (rest <= 0 || others <= 0) return { least: 0, most: 0, guess: 0 };
  const [first] = known;
  const last = Math.min(known.at(-1), rest) / first;
  const sum = rest / first;
  if (temperature === 1) return { least: sum, most: sum, guess: sum };
  const power = 1 / temperature;
  const even = others * (sum / others) ** power; // all alike
  const steep = sum * last ** (power - 1); // as many as possible as likely as the last known one
  const ratio = (sum / (sum + last)) ** power;
  const falling = (last ** power * ratio) / (1 - ratio); // each by the same factor less likely than the one before
  const [least, most] = [Math.min(even, steep), Math.max(even, steep)];
  return { least, most, guess: Math.min(most, Math.max(least, falling)) };
}

/** The number of leading tokens that top-p keeps; all of them if their sum does not reach it. */
function keptByP(weights, total, top_p) {
  let before = 0;
  for (let index = 0; index < weights.length; index++) {
    if (before >= top_p) return index;
    before += weights[index] / total;
  }
  return weights.length;
}

const summed = (numbers) => numbers.reduce((total, number) => total + number, 0);

/**
 * The probability of each known token to be drawn, and of all others together.
 *
 * `known`: probabilities of the model, the likeliest first; `rest`: the sum of the others; `others`: their number.
 */
export function redraw(known, rest, others, { temperature, top_k, top_p, min_p }) {
  if (temperature === 0) return { drawn: known.map((_, index) => Number(index === 0)), rest: 0, exact: true };
  const count = top_k > 0 ? Math.min(top_k, known.length) : known.length;
  const weights = known.slice(0, count).map((probability) => (probability / known[0]) ** (1 / temperature));
  const cut = top_k > 0 && top_k < known.length + others;
  const none = cut && top_k <= known.length;
  const tail = none ? { least: 0, most: 0, guess: 0 } : tailWeight(known, rest, others, temperature);
  if (cut && !none) {
    const most = (top_k - known.length) * weights.at(-1); // only some of the others stay
    Object.assign(tail, { least: 0, most: Math.min(tail.most, most), guess: Math.min(tail.guess, most) });
  }
  const sum = summed(weights);

  // top-p: how many stay may depend on the weight of the others
  let kept = weights.length;
  let left = tail.guess;
  let fewest = kept;
  let sure = true; // of how many stay
  // whether the weight of the others that stay is known
  let settled = (tail.most - tail.least) / (sum + tail.guess) <= NEGLIGIBLE;
  if (top_p < 1) {
    kept = keptByP(weights, sum + tail.guess, top_p);
    fewest = keptByP(weights, sum + tail.least, top_p);
    sure = fewest === keptByP(weights, sum + tail.most, top_p);
    left = Math.max(0, Math.min(tail.guess, top_p * (sum + tail.guess) - sum));
    settled = kept < weights.length || sum / (sum + tail.most) >= top_p;
  }

  // min-p: the others are at most as likely as the last known token
  if (min_p > 0) {
    const likely = weights.filter((weight) => weight >= min_p).length;
    if (likely < weights.length || weights.at(-1) < min_p) {
      left = 0;
      settled = true;
      sure ||= fewest >= likely;
    } else if (left > 0) settled = false;
    kept = Math.min(kept, Math.max(1, likely));
  }

  const total = summed(weights.slice(0, kept)) + left;
  const drawn = known.map((_, index) => (index < kept ? weights[index] / total : 0));
  return { drawn, rest: left / total, exact: sure && (settled || tail.most === 0) };
}
