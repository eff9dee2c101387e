// @ts-check
// A head from the overview as a small picture: a pixel for each cell, none where the mask forbids.

/** Draws a head; keys that are left out are empty, and the others rescaled. */
export function drawTile(canvas, page, kind, layer, head) {
  const { store, colours, state } = page;
  const attention = store.attention(kind);
  const { levels, code, most } = store.coarse(kind, layer, head);
  const { rows, columns, numbers } = levels[0];
  const table = colours.table(code, most);
  const left = state.without ? leftOf(attention, columns) : new Set();
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0; row < rows; row++) {
    const last = attention.causal ? Math.min(columns, row + 1) : columns; // masked cells stay empty
    const begin = row * columns;
    const scale = left.size ? scaleOf(attention, numbers, begin, columns, left, code, [layer, head]) : 1;
    for (let column = 0; column < last; column++) {
      if (left.has(column)) continue;
      const number = numbers[begin + column];
      pixels[begin + column] = table[Math.min(code.steps, Math.round(number * scale))];
    }
  }
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The columns of the overview that are left out. */
function leftOf({ sinks, shape }, columns) {
  return new Set(sinks.map((position) => Math.floor((position * columns) / shape[1])));
}

/** What the numbers of a row are multiplied by: they are roots of weights. */
function scaleOf({ overview, shape, sunk }, numbers, begin, columns, left, code, [layer, head]) {
  let rest = 0;
  if (overview[1] === shape[1]) {
    for (let column = 0; column < columns; column++) {
      if (!left.has(column)) rest += code.value(numbers[begin + column]);
    }
  } else rest = 1 - (sunk?.[layer][head] ?? 0); // each number is the largest of several
  return rest > 0.001 ? Math.sqrt(1 / rest) : 0;
}
