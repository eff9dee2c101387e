// @ts-check
// The quiz: one question at a time, graded and explained here. All texts go into the page as text.

const root = document.documentElement;
const all = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);
const STORE = "qkv-quiz";
const EXPECTED = {
  number: "A number, such as 0.25, 1/4 or 2e-3",
  shape: "A shape, such as (2, 3) or 2x3",
  code: "What it prints",
};
let questions = all;
let place = 0;
let answers = load();

/** The answers that this browser keeps: by id, what was typed and whether it is right. */
function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE)) ?? {};
    return typeof kept === "object" ? kept : {};
  } catch {
    return {};
  }
}

function keep() {
  try {
    localStorage.setItem(STORE, JSON.stringify(answers));
  } catch {
    // A browser without storage forgets the answers
  }
}

// Elements

function make(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** A text whose parts in backticks are code. */
function inline(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", "", part) : part));
}

// Answers

/** The value of a number as it is typed: 0.25, 1/4, 25%, 1,024, 2^10, ln(2); NaN if it is none. */
function numberOf(text) {
  const formula = text.trim().toLowerCase().replace(/\.$/, "")
    .replaceAll("−", "-").replace(/[×·]/g, "*").replaceAll("**", "^").replaceAll("_", "").replaceAll("π", "pi")
    .replace(/(\d) (?=\d{3}\b)/g, "$1")
    .replace(/(?<![\d.])[1-9]\d{0,2}(?:,\d{3})+(?!\d)/g, (found) => found.replaceAll(",", ""))
    .replace(/(\d),(?=\d)/g, "$1.")
    .replace(/(\d)\s*%$/, "$1 / 100");
  if (formula.length > 200) return NaN;
  const tokens = formula.match(/(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[a-z]\w*|[-+*/^()]|\S/g) ?? [];
  let next = 0;
  const take = (token) => tokens[next] === token && ++next > 0;

  function sum() {
    let value = product();
    while (tokens[next] === "+" || tokens[next] === "-") value = take("+") ? value + product() : (next++, value - product());
    return value;
  }
  function product() {
    let value = signed();
    while (tokens[next] === "*" || tokens[next] === "/") value = take("*") ? value * signed() : (next++, value / signed());
    return value;
  }
  function signed() {
    if (take("-")) return -signed();
    if (take("+")) return signed();
    const value = atom();
    return take("^") ? value ** signed() : value;
  }
  function atom() {
    const token = tokens[next++] ?? "";
    const functions = { sqrt: Math.sqrt, exp: Math.exp, ln: Math.log, log: Math.log, log2: Math.log2 };
    if (Object.hasOwn(functions, token) && take("(")) {
      const value = functions[token](sum());
      return take(")") ? value : NaN;
    }
    if (token === "(") {
      const value = sum();
      return take(")") ? value : NaN;
    }
    if (token === "pi") return Math.PI;
    if (token === "e") return Math.E;
    return /^[\d.]/.test(token) ? Number(token) : NaN;
  }

  const value = sum();
  return next === tokens.length && Number.isFinite(value) ? value : NaN;
}

/** A shape as it is typed, as "2,3"; null if it is none. */
function shapeOf(text) {
  const bare = text.trim().toLowerCase().replace(/^torch\.size/, "").replace(/^[()[\] ,]+|[()[\] ,]+$/g, "");
  if (bare === "") return /[([]/.test(text) ? "" : null;
  const sizes = bare.split(/\s*[,x×*]\s*|\s+/);
  return sizes.every((size) => /^\d{1,12}$/.test(size)) ? sizes.map(Number).join() : null;
}

function plain(text) {
  const bare = text.replace(/\s/g, "").toLowerCase().replaceAll('"', "'");
  return bare.replace(/^tensor\((.*)\)$/, "$1").replace(/^['`]+|['`]+$/g, "");
}

/** Whether what was typed is an answer, by the kind of the question. */
function isAnswer(question, typed, answer) {
  if (question.kind === "number") return Math.abs(numberOf(typed) - numberOf(answer)) <= question.tolerance;
  if (question.kind === "shape") return shapeOf(typed) === shapeOf(answer);
  if (question.kind === "choice") return typed === answer;
  if (plain(typed) === plain(answer)) return true;
  const [mine, right] = [numberOf(typed), numberOf(answer)];
  return Math.abs(mine - right) <= 1e-6 * Math.max(Math.abs(mine), Math.abs(right));
}

/** Why a text is not an answer at all; empty if it is one. */
function unreadable(question, typed) {
  if (typed.trim() === "") return "Type an answer first.";
  if (question.kind === "number" && Number.isNaN(numberOf(typed))) return `This is not a number. ${EXPECTED.number}.`;
  if (question.kind === "shape" && shapeOf(typed) === null) return `This is not a shape. ${EXPECTED.shape}.`;
  return "";
}

function answer(typed) {
  const question = questions[place];
  if (answers[question.id] !== undefined) return;
  const problem = unreadable(question, typed);
  if (problem) $("#feedback").replaceChildren(make("p", "", problem));
  else record(question, typed);
}

/** Keeps an answer and explains it; an empty one if the student wants to see the answer. */
function record(question, typed) {
  answers[question.id] = { typed, right: isAnswer(question, typed, question.answer) };
  keep();
  show(false);
  $("#next").focus({ preventScroll: true });
  $("#feedback").scrollIntoView({ block: "nearest" });
}

// Views

function show(focus = true) {
  const finished = place >= questions.length;
  $("#feedback").replaceChildren();
  $("#back").disabled = place === 0;
  $("#next").disabled = finished;
  $("#reveal").hidden = finished || answers[questions[place].id] !== undefined;
  const given = questions.filter(({ id }) => answers[id] !== undefined);
  const right = given.filter(({ id }) => answers[id].right).length;
  $("#done").style.width = `${(100 * given.length) / questions.length}%`;
  $("#score").textContent = `${right} of ${given.length} right`;
  $("#place").textContent = finished ? "The end" : `Question ${place + 1} of ${questions.length} · ${questions[place].title}`;
  const card = $("#card");
  if (finished) {
    card.replaceChildren(...summary(given, right));
  } else {
    const question = questions[place];
    card.replaceChildren(...questionView(question));
    if (answers[question.id] !== undefined) explain(question, answers[question.id]);
  }
  $("#next").classList.toggle("main", !finished && answers[questions[place].id] !== undefined);
  $("#next").textContent = place === questions.length - 1 ? "Result →" : "Next →";
  if (!focus) return;
  const heading = card.querySelector("h2");
  heading.tabIndex = -1;
  (card.querySelector("input:not(:disabled)") ?? heading).focus({ preventScroll: true });
  scrollTo(0, 0);
}

function questionView(question) {
  const nodes = [make("h2", "", ...inline(question.question))];
  nodes[0].id = "question";
  if (question.kind === "code") nodes.push(codeView(question.code, "Code to predict"));
  nodes.push(question.options.length ? optionsView(question) : fieldView(question));
  return nodes;
}

function codeView(code, label, className = "") {
  const node = make("pre", className, code);
  node.tabIndex = 0;
  node.setAttribute("aria-label", label);
  return node;
}

function optionsView(question) {
  const given = answers[question.id];
  const list = make("ol", "options");
  list.setAttribute("aria-labelledby", "question");
  question.options.forEach((option, index) => {
    const mark = make("span", "mark");
    const button = make("button", "", make("span", "key", `${index + 1}`), make("span", "", ...inline(option)), mark);
    button.type = "button";
    if (given === undefined) {
      button.addEventListener("click", () => answer(option));
    } else {
      button.disabled = true;
      if (option === question.answer) button.classList.add("right");
      if (option === given.typed) button.classList.add("chosen");
      if (option === question.answer) mark.textContent = "right";
      else if (option === given.typed) mark.textContent = "your answer";
    }
    list.append(make("li", "", button));
  });
  return list;
}

function fieldView(question) {
  const given = answers[question.id];
  const input = make("input");
  const label = make("label", "", EXPECTED[question.kind], input);
  const button = make("button", given === undefined ? "main" : "", "Answer");
  input.autocomplete = "off";
  input.spellcheck = false;
  input.autocapitalize = "off";
  button.type = "button";
  if (given !== undefined) {
    input.value = given.typed;
    input.disabled = true;
    button.disabled = true;
  }
  button.addEventListener("click", () => answer(input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    answer(input.value);
  });
  return make("div", "typed", label, button);
}

/** Shows whether an answer is right, why, and what the code says. */
function explain(question, given) {
  const nodes = [];
  if (given.right) nodes.push(make("p", "word yes", "Right"));
  else if (given.typed !== "") nodes.push(make("p", "word no", "Not right"));
  if (!given.right) {
    const known = question.wrong.find(({ answer: wrong }) => isAnswer(question, given.typed, wrong));
    if (known !== undefined) nodes.push(make("p", "", ...inline(known.why)));
    nodes.push(make("p", "", make("b", "", "The answer: "), ...inline(question.answer)));
  }
  nodes.push(make("p", "", ...inline(question.explanation)));
  if (question.code) {
    const part = make("div");
    if (question.kind !== "code") part.append(codeView(question.code, "Code that computes the answer"));
    part.append(make("p", "note", "It prints"), codeView(question.output, "Its output", "output"));
    nodes.push(part);
  }
  const where = [];
  if (question.exercise) where.push(`Exercise ${question.exercise}`);
  if (question.experiment) where.push(`qkv lab ${question.experiment}`);
  if (question.slides.length) where.push(`Slides ${question.slides.join(", ")}`);
  if (where.length) nodes.push(make("p", "note", where.join(" · ")));
  $("#feedback").replaceChildren(...nodes);
}

function summary(given, right) {
  const missed = questions.filter(({ id }) => answers[id]?.right === false);
  const open = questions.length - given.length;
  const nodes = [make("h2", "", `${right} of ${questions.length} answers are right`)];
  if (open) nodes.push(make("p", "note", `${open} not answered yet`));
  if (missed.length) {
    const list = make("ul", "missed");
    for (const question of missed) {
      const first = question.question.split("\n")[0];
      const button = make("button", "", ...inline(first));
      button.type = "button";
      button.addEventListener("click", () => go(questions.indexOf(question)));
      list.append(make("li", "", button));
    }
    nodes.push(make("p", "", "Not right yet:"), list);
    nodes.push(action(`Ask these ${missed.length} again`, () => again(missed)));
  }
  nodes.push(action("Start anew", () => {
    for (const { id } of questions) delete answers[id];
    keep();
    go(0);
  }));
  return nodes;
}

function action(text, act) {
  const button = make("button", "", text);
  button.type = "button";
  button.addEventListener("click", act);
  return make("p", "", button);
}

function again(missed) {
  for (const { id } of missed) delete answers[id];
  keep();
  questions = missed;
  go(0);
}

function go(to) {
  place = Math.max(0, Math.min(questions.length, to));
  show();
}

// Topics, themes, keys

const topics = new Map(all.map(({ topic, title }) => [topic, title]));
const select = $("#topic");
select.append(new Option(`All (${all.length})`, ""));
for (const [topic, title] of topics) select.append(new Option(title, topic));
select.addEventListener("change", () => {
  questions = all.filter(({ topic }) => select.value === "" || topic === select.value);
  const first = questions.findIndex(({ id }) => answers[id] === undefined);
  go(Math.max(0, first));
});

function toggleTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
}

/** Moves the focus among the options. */
function move(by) {
  const buttons = [...document.querySelectorAll(".options button:not(:disabled)")];
  if (buttons.length === 0) return false;
  const now = buttons.indexOf(document.activeElement);
  buttons[now < 0 ? (by > 0 ? 0 : buttons.length - 1) : (now + by + buttons.length) % buttons.length].focus();
  return true;
}

$("#back").addEventListener("click", () => go(place - 1));
$("#next").addEventListener("click", () => go(place + 1));
$("#reveal").addEventListener("click", () => record(questions[place], ""));

const ACTIONS = {
  ArrowRight: () => go(place + 1),
  ArrowLeft: () => go(place - 1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  Enter: () => (answers[questions[place]?.id] === undefined ? false : go(place + 1)),
  d: toggleTheme,
  p: () => root.toggleAttribute("data-projector"),
  "?": () => $("#help").showModal(),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open) return;
  const typing = event.target.closest("input, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("button")) return; // it presses the button
  if (event.key.startsWith("Arrow") && event.target.closest("pre")) return; // these scroll the code
  if (/^[1-9]$/.test(event.key)) {
    document.querySelectorAll(".options button")[Number(event.key) - 1]?.click();
    return;
  }
  const act = ACTIONS[event.key];
  if (act !== undefined && act() !== false) event.preventDefault();
});
for (const button of document.querySelectorAll("[data-key]")) {
  button.addEventListener("click", () => ACTIONS[button.dataset.key]());
}

if (location.hash.includes("dark")) root.dataset.theme = "dark";
if (location.hash.includes("projector")) root.setAttribute("data-projector", "");
const first = all.findIndex(({ id }) => answers[id] === undefined);
go(first < 0 ? all.length : first);
root.dataset.ready = "";
