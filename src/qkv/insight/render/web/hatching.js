// @ts-check
// Hatching on a canvas: cells that the mask forbids, and columns that are left out. Neither looks like a weight of 0.

const INK = { light: "#00000038", dark: "#ffffff40" };
const GREY = { light: "#e4e4df", dark: "#2c313b" };
const APART = 7; // pixels between two strokes

const patterns = new Map();

/** A pattern of strokes that rise or fall. */
function strokes(pen, ratio, theme, falling) {
  const key = `${ratio} ${theme} ${falling}`;
  if (!patterns.has(key)) {
    const size = Math.max(4, Math.round(APART * ratio));
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const brush = tile.getContext("2d");
    brush.strokeStyle = INK[theme];
    brush.lineWidth = Math.max(1, ratio);
    brush.lineCap = "square";
    for (const shift of [-size, 0, size]) {
      brush.moveTo(shift, falling ? 0 : size);
      brush.lineTo(shift + size, falling ? size : 0);
    }
    brush.stroke();
    patterns.set(key, pen.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
}

/** Hatches everything that is still empty. */
export function drawForbidden(pen, ratio, theme) {
  pen.save();
  pen.globalCompositeOperation = "destination-over";
  pen.fillStyle = strokes(pen, ratio, theme, false);
  pen.fillRect(0, 0, pen.canvas.width, pen.canvas.height);
  pen.restore();
}

/** Greys the visible columns that are left out. */
export function drawLeftOut(pen, ratio, theme, { cell, x, y, height, rows }, left) {
  const high = Math.min(height, (rows - y) * cell) * ratio;
  for (const column of left) {
    const from = (column - x) * cell * ratio;
    const wide = Math.max(1, cell * ratio);
    for (const style of [GREY[theme], strokes(pen, ratio, theme, true)]) {
      pen.fillStyle = style;
      pen.fillRect(from, 0, wide, high);
    }
  }
}
