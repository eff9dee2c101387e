// Which part of a matrix is in sight: its place and its size, moved by mouse, fingers and keys.

const STILL = 4; // pixels a finger may tremble in a click

export class Sight {
  /** `moved()` is called when another part is in sight, `hover` and `pick` with {row, column}, `hover` also with null. */
  constructor(canvas, { moved, hover, pick }) {
    Object.assign(this, { canvas, moved, onhover: hover, onpick: pick });
    this.x = this.y = 0; // in cells
    this.cell = this.least = 1; // in pixels
    this.width = this.height = 0;
    this.fingers = new Map();
    this.travelled = 0;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.onhover(null));
  }

  set(rows, columns) {
    this.rows = rows;
    this.columns = columns;
  }

  /** All of the matrix in the room there is; `fit` forgets what was in sight. */
  resize(width, height, largest, fit) {
    [width, height] = [Math.floor(width), Math.floor(height)];
    const fitted = this.cell === this.least;
    let least = Math.min(width / this.columns, height / this.rows, largest);
    const low = Math.min(this.rows, this.columns) * least; // one side may be much longer than the other
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
    this.keep();
  }

  keep() {
    this.x = Math.max(0, Math.min(this.x, this.columns - this.width / this.cell));
    this.y = Math.max(0, Math.min(this.y, this.rows - this.height / this.cell));
    const whole = this.columns * this.cell <= this.width + 1 && this.rows * this.cell <= this.height + 1;
    this.canvas.style.touchAction = whole ? "pan-y" : "none"; // else a finger scrolls the page
    this.canvas.style.cursor = whole ? "crosshair" : this.fingers.size ? "grabbing" : "grab";
    this.moved();
  }

  /** By a factor, about a place on the canvas. Says whether there was anything to do. */
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const cell = Math.min(Math.max(this.cell * factor, this.least), Math.max(64, this.least));
    const changed = cell !== this.cell;
    this.x += left / this.cell - left / cell;
    this.y += top / this.cell - top / cell;
    this.cell = cell;
    this.keep();
    return changed;
  }

  pan(across, down) {
    this.x -= across / this.cell;
    this.y -= down / this.cell;
    this.keep();
  }

  reveal(row, column) {
    this.x = Math.min(column, Math.max(this.x, column + 1 - this.width / this.cell));
    this.y = Math.min(row, Math.max(this.y, row + 1 - this.height / this.cell));
    this.keep();
  }

  /** The first and the last, and all between. */
  rowsInSight() {
    return range(this.y, this.y + this.height / this.cell, this.rows);
  }

  columnsInSight() {
    return range(this.x, this.x + this.width / this.cell, this.columns);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(this.x + (event.clientX - box.left) / this.cell);
    const row = Math.floor(this.y + (event.clientY - box.top) / this.cell);
    return row >= 0 && row < this.rows && column >= 0 && column < this.columns ? { row, column } : null;
  }

  wheel(event) {
    const box = this.canvas.getBoundingClientRect();
    const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015) * (event.deltaMode ? 20 : 1));
    if (this.zoom(factor, event.clientX - box.left, event.clientY - box.top)) event.preventDefault();
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, event);
    if (this.fingers.size === 1) this.travelled = 0;
  }

  move(event) {
    const before = this.fingers.get(event.pointerId);
    if (!before) {
      this.onhover(this.at(event));
      return;
    }
    const [across, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
    this.travelled += Math.abs(across) + Math.abs(down);
    if (this.fingers.size === 2) this.pinch(event);
    else if (this.travelled > STILL) this.pan(across, down);
    this.fingers.set(event.pointerId, event);
  }

  pinch(event) {
    const [other] = [...this.fingers.values()].filter((finger) => finger.pointerId !== event.pointerId);
    const before = this.fingers.get(event.pointerId);
    const apart = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
    const box = this.canvas.getBoundingClientRect();
    const middle = [(event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top];
    this.zoom(apart(event) / Math.max(1, apart(before)), ...middle);
    this.pan((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
  }

  up(event) {
    if (!this.fingers.delete(event.pointerId)) return;
    const at = this.at(event);
    if (this.travelled <= STILL && at) {
      this.onhover(at);
      this.onpick(at);
    }
    this.keep();
  }
}

function range(from, to, count) {
  const first = Math.max(0, Math.floor(from));
  const last = Math.min(count - 1, Math.ceil(to) - 1);
  return Array.from({ length: Math.max(1, last - first + 1) }, (_, place) => first + place);
}
