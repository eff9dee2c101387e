// @ts-check
// The draw of a token: a number between 0 and 1 from a seed, and the token on whose share it falls.

/**
 * The number between 0 and 1 that belongs to a seed (mulberry32).
 * @param {number} seed
 */
export function fraction(seed) {
  let state = (seed + 0x6d2b79f5) | 0;
  state = Math.imul(state ^ (state >>> 15), state | 1);
  state ^= state + Math.imul(state ^ (state >>> 7), state | 61);
  return ((state ^ (state >>> 14)) >>> 0) / 4294967296;
}

/**
 * The index of the share on which the number falls; null if it falls on what is left of 1.
 * @param {number[]} shares
 * @param {number} number
 * @returns {number | null}
 */
export function drawn(shares, number) {
  let sum = 0;
  for (const [index, share] of shares.entries()) {
    sum += share;
    if (number < sum) return index;
  }
  return null;
}
