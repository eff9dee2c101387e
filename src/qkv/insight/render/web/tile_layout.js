// @ts-check
// How large the tiles of all heads are: layers continue in further columns if this makes them larger.

export const GAP = 4;
const SIDE = 22; // pixels of the number of a layer
const ABOVE = 18; // pixels of the numbers of the heads
const MOST = 96; // pixels of a tile
const LEAST = 20; // pixels of its shorter side; smaller tiles scroll instead
const SCROLLED = 48; // pixels of a tile, at most, where the height has no limit
const BLOCKS = 4;

/**
 * The number of blocks side by side, the layers of each, and the height of a tile in pixels.
 * `width` and `height` are what is available, `ratio` the width of a tile by its height, `caption` the height of its
 * name. Without a limit of the height there is one block, which scrolls.
 */
export function tileLayout({ layers, heads, width, height, ratio, caption }) {
  const least = LEAST / Math.min(1, ratio);
  const wide = (blocks) => (((width - 8) / blocks - SIDE - GAP) / heads - GAP) / ratio;
  if (!Number.isFinite(height)) {
    return { blocks: 1, deep: layers, size: Math.floor(Math.max(12, Math.min(SCROLLED, wide(1)))) };
  }
  let best = { blocks: 1, deep: layers, size: 0 }; // the largest tiles that all fit
  let narrow = { ...best, size: least }; // the most blocks that fit by their width alone
  for (let blocks = 1; blocks <= Math.min(BLOCKS, layers); blocks++) {
    const deep = Math.ceil(layers / blocks);
    const across = wide(blocks);
    const down = (height - ABOVE - GAP) / deep - GAP - caption;
    const size = Math.floor(Math.min(MOST, across, down));
    if (across >= least) narrow = { blocks, deep, size: Math.floor(Math.min(across, 1.3 * least)) };
    if (size > best.size) best = { blocks, deep, size };
  }
  return best.size >= least ? best : narrow;
}
