// @ts-check
// The arithmetic of one attention head, without a page: vectors are arrays of numbers, sums are in float64.

/** The summands of a score: products q_i k_i, or v_i tanh(q_i + k_i) of the additive score. */
export function terms(query, key, additive = null) {
  const result = new Float64Array(query.length);
  for (let i = 0; i < query.length; i++) {
    result[i] = additive ? additive[i] * Math.tanh(query[i] + key[i]) : query[i] * key[i];
  }
  return result;
}

export function sum(numbers) {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}

/** The sums of the first, the first two, ... numbers. */
export function runningSums(numbers) {
  let total = 0;
  return Float64Array.from(numbers, (number) => (total += number));
}

export function norm(vector) {
  let squares = 0;
  for (const number of vector) squares += number * number;
  return Math.sqrt(squares);
}

/** The cosine of the angle between two vectors; 0 if one of them is 0. */
export function cosine(a, b) {
  const lengths = norm(a) * norm(b);
  return lengths === 0 ? 0 : sum(terms(a, b)) / lengths;
}

/** Weights that are positive and sum to 1; a score of -Infinity gets 0, and nothing visible gets only zeros. */
export function softmax(scores) {
  let most = -Infinity;
  for (const score of scores) most = Math.max(most, score);
  if (most === -Infinity) return new Float64Array(scores.length);
  const powers = Float64Array.from(scores, (score) => Math.exp(score - most));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** The entropy of weights in bits; 2 ** entropy is the number of tokens that equal weights would have. */
export function entropy(weights) {
  let bits = 0;
  for (const weight of weights) if (weight > 0) bits -= weight * Math.log2(weight);
  return bits;
}

/** How many tokens, looked at alike, have the entropy of these weights. */
export function alike(weights) {
  return 2 ** entropy(weights);
}

/** The weights with one of them set; the others that are `visible` are scaled, so that the sum stays 1. */
export function reweighted(weights, index, weight, visible) {
  const chosen = Math.min(1, Math.max(0, weight));
  const others = weights.reduce((total, other, i) => total + (i !== index && visible[i] ? other : 0), 0);
  const free = weights.reduce((count, _, i) => count + (i !== index && visible[i] ? 1 : 0), 0);
  if (free === 0) return Float64Array.from(weights, (_, i) => (i === index ? 1 : 0)); // it is the only one
  return Float64Array.from(weights, (other, i) => {
    if (i === index) return chosen;
    if (!visible[i]) return 0;
    return others > 0 ? (other * (1 - chosen)) / others : (1 - chosen) / free;
  });
}

/** The sum of vectors, each times its weight. */
export function mixture(weights, vectors, width) {
  const result = new Float64Array(width);
  vectors.forEach((vector, index) => {
    for (let i = 0; i < width; i++) result[i] += weights[index] * vector[i];
  });
  return result;
}

/** A vector with rotary position: each pair of numbers (i, i + D/2) is turned by position times frequency. */
export function turned(vector, frequencies, position) {
  const half = vector.length / 2;
  const result = new Float64Array(vector.length);
  for (let i = 0; i < half; i++) {
    const cos = Math.cos(position * frequencies[i]);
    const sin = Math.sin(position * frequencies[i]);
    result[i] = vector[i] * cos - vector[i + half] * sin;
    result[i + half] = vector[i + half] * cos + vector[i] * sin;
  }
  return result;
}

/** The indices of the largest numbers, by size; with `absolute` of the largest magnitudes. */
export function largest(numbers, count = numbers.length, absolute = false) {
  const size = (index) => (absolute ? Math.abs(numbers[index]) : numbers[index]);
  const order = Array.from(numbers, (_, index) => index);
  return order.sort((a, b) => size(b) - size(a) || a - b).slice(0, count);
}

/** The magnitude that 99 of 100 numbers stay below: one outlier does not make all other colours pale. */
export function scaleOf(vectors) {
  const sizes = vectors.flatMap((vector) => Array.from(vector, Math.abs)).sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || sizes.at(-1) || 1;
}
