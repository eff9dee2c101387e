// @ts-check
// The visible part of a matrix: its offset and its zoom, moved by mouse, touch and keys.

const STILL = 4; // pixels that a pointer may move in a click

export class Viewport {
  /** @type {(cell: any) => void} */
  onhover;
  /** @type {HTMLCanvasElement} */
  canvas;
  /** @type {() => void} */
  moved;
  /** @type {(picked: any) => void} */
  onpick;

  /** Calls `moved()` when another part is visible, `hover` and `pick` with {row, column}, `hover` also with null. */
  constructor(canvas, { moved, hover, pick }) {
    Object.assign(this, { canvas, moved, onhover: hover, onpick: pick });
    this.x = this.y = 0; // in cells
    this.cell = this.least = 1; // in pixels
    this.width = this.height = 0;
    this.pointers = new Map();
    this.travelled = 0;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.onhover(null));
  }

  set(rows, columns) {
    this.rows = rows;
    this.columns = columns;
  }

  /** Fits the matrix into the available size; `fit` resets offset and zoom. */
  resize(width, height, largest, fit) {
    [width, height] = [Math.floor(width), Math.floor(height)];
    const fitted = this.cell === this.least;
    let least = Math.min(width / this.columns, height / this.rows, largest);
    const low = Math.min(this.rows, this.columns) * least; // if one side is much longer than the other
    if (low < 120) least = Math.min(120 / Math.min(this.rows, this.columns), 26, largest);
    this.least = least;
    this.width = Math.ceil(Math.min(width, this.columns * least));
    this.height = Math.ceil(Math.min(height, this.rows * least));
    if (fit || fitted) this.fit();
    else this.zoom(1);
  }

  fit() {
    this.cell = this.least;
    this.x = this.y = 0;
    this.clamp();
  }

  clamp() {
    this.x = Math.max(0, Math.min(this.x, this.columns - this.width / this.cell));
    this.y = Math.max(0, Math.min(this.y, this.rows - this.height / this.cell));
    const whole = this.columns * this.cell <= this.width + 1 && this.rows * this.cell <= this.height + 1;
    this.canvas.style.touchAction = whole ? "pan-x pan-y" : "none"; // otherwise a finger would scroll the page
    this.canvas.style.cursor = whole ? "crosshair" : this.pointers.size ? "grabbing" : "grab";
    this.moved();
  }

  /** Zooms by a factor about a point of the canvas. */
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const cell = Math.min(Math.max(this.cell * factor, this.least), Math.max(64, this.least));
    this.x += left / this.cell - left / cell;
    this.y += top / this.cell - top / cell;
    this.cell = cell;
    this.clamp();
  }

  pan(across, down) {
    this.x -= across / this.cell;
    this.y -= down / this.cell;
    this.clamp();
  }

  reveal(row, column) {
    this.x = Math.min(column, Math.max(this.x, column + 1 - this.width / this.cell));
    this.y = Math.min(row, Math.max(this.y, row + 1 - this.height / this.cell));
    this.clamp();
  }

  /** The indices of the visible rows. */
  visibleRows() {
    return range(this.y, this.y + this.height / this.cell, this.rows);
  }

  visibleColumns() {
    return range(this.x, this.x + this.width / this.cell, this.columns);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(this.x + (event.clientX - box.left) / this.cell);
    const row = Math.floor(this.y + (event.clientY - box.top) / this.cell);
    return row >= 0 && row < this.rows && column >= 0 && column < this.columns ? { row, column } : null;
  }

  /** Zooms if Ctrl is held, or two fingers pinch a touch pad; otherwise the page scrolls. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    const turned = Math.max(-60, Math.min(60, event.deltaY * (event.deltaMode ? 20 : 1))); // a wheel turns further than fingers
    this.zoom(Math.exp(-turned * 0.0075), event.clientX - box.left, event.clientY - box.top);
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    if (this.pointers.size === 1) this.travelled = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.onhover(this.cellAt(event));
      return;
    }
    const [across, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
    this.travelled += Math.abs(across) + Math.abs(down);
    if (this.pointers.size === 2) this.pinch(event);
    else if (this.travelled > STILL) this.pan(across, down);
    this.pointers.set(event.pointerId, event);
  }

  pinch(event) {
    const [other] = [...this.pointers.values()].filter((finger) => finger.pointerId !== event.pointerId);
    const before = this.pointers.get(event.pointerId);
    const apart = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
    const box = this.canvas.getBoundingClientRect();
    const middle = [(event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top];
    this.zoom(apart(event) / Math.max(1, apart(before)), ...middle);
    this.pan((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const cell = this.cellAt(event);
    if (this.travelled <= STILL && cell) {
      this.onhover(cell);
      this.onpick(cell);
    }
    this.clamp();
  }
}

function range(from, to, count) {
  const first = Math.max(0, Math.floor(from));
  const last = Math.min(count - 1, Math.ceil(to) - 1);
  return Array.from({ length: Math.max(1, last - first + 1) }, (_, index) => first + index);
}
