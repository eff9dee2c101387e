// @ts-check
// The page of an experiment: numbers under the pointer and by keyboard, themes, projector, table, help.

const root = document.documentElement;
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);
const tip = $("#tip");
const status = $("#status");
const help = $("#help");

// Points: each mark of the data that was drawn, with its element and its panel.
const points = data.marks
  .map((mark) => ({ ...mark, node: document.getElementById(mark.id) }))
  .filter(({ node }) => node !== null)
  .map((mark) => ({ ...mark, svg: mark.node.closest("svg") }));
const series = [...new Set(points.map(({ panel, arm }) => `${panel} ${arm}`))];
let current = null;
let chosen = null;

function centre(point) {
  const box = point.node.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

/** Shows the numbers of a point, or hides them. */
function show(point, announce = false) {
  if (point === current) return;
  current?.node.classList.remove("near");
  current = point;
  tip.hidden = point === null;
  if (point === null) return;
  point.node.classList.add("near");
  const title = document.createElement("b");
  title.textContent = point.title;
  const units = document.createElement("span");
  units.className = "note";
  units.textContent = point.units;
  tip.replaceChildren(title, point.text, units);
  const [x, y] = centre(point);
  const left = Math.min(x + 14, root.clientWidth - tip.offsetWidth - 8);
  const above = y - tip.offsetHeight - 14;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : y + 14) + scrollY}px`;
  if (announce) status.textContent = `${point.title}: ${point.text}`;
}

/** The point of a panel that is nearest to the pointer, if it is near. */
function nearest(event) {
  const svg = event.target.closest("svg");
  let best = null;
  let distance = 60;
  for (const point of points) {
    if (point.svg !== svg || (chosen !== null && point.arm !== chosen)) continue;
    const box = point.node.getBoundingClientRect();
    const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
    const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
    const away = Math.hypot(dx, dy);
    if (away < distance) [best, distance] = [point, away];
  }
  return best;
}

for (const figure of document.querySelectorAll(".panels figure")) {
  figure.addEventListener("pointermove", (event) => show(nearest(event)));
  figure.addEventListener("pointerleave", () => show(null));
}

/** Moves along a series, or to the same place of another one. */
function step(along, across) {
  if (points.length === 0) return;
  const name = (point) => `${point.panel} ${point.arm}`;
  if (current === null) {
    move(points[0]);
    return;
  }
  const own = points.filter((point) => name(point) === name(current));
  const place = own.indexOf(current);
  if (along) {
    move(own[Math.min(own.length - 1, Math.max(0, place + along))]);
    return;
  }
  const next = series[(series.indexOf(name(current)) + across + series.length) % series.length];
  const other = points.filter((point) => name(point) === next);
  move(other.find(({ x }) => x === current.x) ?? other[Math.min(place, other.length - 1)]);
}

function move(point) {
  point.svg.scrollIntoView({ block: "nearest" });
  show(point, true);
}

/** Emphasises one arm in all panels: its marks stay, those of others fade. */
function choose(arm) {
  chosen = chosen === arm ? null : arm;
  for (const button of document.querySelectorAll(".legend button")) {
    button.setAttribute("aria-pressed", String(button.dataset.arm === chosen));
  }
  for (const { node, arm: other } of points) node.classList.toggle("faded", chosen !== null && other !== chosen);
  const colour = chosen === null ? null : data.colours[chosen];
  for (const node of document.querySelectorAll(".panels [stroke], .panels [fill]")) {
    const own = (node.getAttribute("stroke") ?? node.getAttribute("fill")).toLowerCase();
    const others = Object.values(data.colours).includes(own) && own !== colour;
    if (node.closest("[id^=mark-]") === null) node.classList.toggle("faded", chosen !== null && others);
  }
}

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => choose(button.dataset.arm));
}

// Theme, projector, table

const dark = matchMedia("(prefers-color-scheme: dark)");

function toggleTheme() {
  const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
}

function toggleProjector() {
  root.toggleAttribute("data-projector");
  show(null);
}

function toggleTable() {
  const table = $("#table");
  table.hidden = !table.hidden;
  if (!table.hidden) table.scrollIntoView({ block: "nearest" });
}

/** Scrolls to the next part of the page: a panel, the table, the verdict ... or back. */
function turn(by) {
  const parts = [...document.querySelectorAll("header, .panels figure, section:not([hidden]) > h2")];
  const tops = parts.map((part) => part.getBoundingClientRect().top - parseFloat(getComputedStyle(part).scrollMarginTop));
  const place = by > 0 ? tops.findIndex((top) => top > 2) : tops.findLastIndex((top) => top < -2);
  parts[place]?.scrollIntoView();
}

const ACTIONS = {
  ArrowRight: () => step(1, 0),
  ArrowLeft: () => step(-1, 0),
  ArrowDown: () => step(0, 1),
  ArrowUp: () => step(0, -1),
  Escape: () => {
    show(null);
    if (chosen !== null) choose(chosen);
  },
  n: () => turn(1),
  b: () => turn(-1),
  t: toggleTable,
  d: toggleTheme,
  p: toggleProjector,
  "?": () => help.showModal(),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.key.startsWith("Arrow") && event.target.closest(".scroller")) return; // these scroll the table
  const vertical = event.key === "ArrowDown" || event.key === "ArrowUp";
  if (vertical && current === null) return; // these keys scroll until a point is shown
  const act = ACTIONS[event.key];
  if (act === undefined) return;
  event.preventDefault();
  act();
});

for (const button of document.querySelectorAll("[data-key]")) {
  button.addEventListener("click", () => ACTIONS[button.dataset.key]());
}
$("#close").addEventListener("click", () => help.close());
addEventListener("resize", () => show(null));
if (location.hash.includes("projector")) toggleProjector();
if (location.hash.includes("dark")) root.dataset.theme = "dark";
root.dataset.ready = "";
