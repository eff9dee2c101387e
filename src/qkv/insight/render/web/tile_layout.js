// @ts-check
// How large the tiles of all heads are: layers continue in further columns if this makes them larger.

export const GAP = 4;
const SIDE = 26; // pixels of the number of a layer
const ABOVE = 18; // pixels of the numbers of the heads
const MOST = 96; // pixels of a tile
const LEAST = 20;
const BLOCKS = 4;

/** The number of blocks side by side, the layers of each, and the height of a tile in pixels.
 * `width` and `height` are what is available, `ratio` the width of a tile by its height, `caption` the height of its
 * name. Without a limit of the height there is one block, which scrolls.
 */
export function tileLayout({ layers, heads, width, height, ratio, caption }) {
  let best = null;
  for (let blocks = 1; blocks <= Math.min(BLOCKS, layers); blocks++) {
    const deep = Math.ceil(layers / blocks);
    const across = ((width - 8) / blocks - SIDE - GAP) / heads - GAP;
    const down = (height - ABOVE - GAP) / deep - GAP - caption;
    const size = Math.max(LEAST / Math.max(1, ratio), Math.min(MOST, across / ratio, down));
    const fits = deep * (size + caption + GAP) + ABOVE <= height;
    if (best === null || (fits && (!best.fits || size > best.size + 0.5))) best = { blocks, deep, size, fits };
    if (!Number.isFinite(height)) break;
  }
  return { ...best, size: Math.floor(best.size) };
}
