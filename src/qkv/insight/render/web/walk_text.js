// @ts-check
// The steps of the walk: their names, and two sentences for each with the numbers of this head.

import { percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { cosine, entropy, largest, sum } from "qkv/walk_math.js";

/** A token of the text in a sentence: without the space before it, which the rows of the table show. */
const named = (text) => quoted(text.trim() === "" ? text : text.trimStart());

const round = (weight) => (weight >= 0.095 ? `${Math.round(100 * weight)}%` : percent(weight));
/** A weight before and after a change, with as many decimals as tell the two apart. */
function change(before, after) {
  const formats = [round, percent, (weight) => `${(100 * weight).toFixed(2)}%`];
  const format = formats.find((one) => one(before) !== one(after)) ?? percent;
  return [format(before), format(after)];
}

const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
const place = (walk, of) => (Number.isInteger(walk.divisor) ? `${walk.divisor}` : of(walk.divisor));

/** A number with three digits: 523, 0.0412, 5.2e+21. */
function figure(number) {
  const far = number >= 1e6 || number < 1e-4;
  return far ? number.toExponential(1) : String(Number(number.toPrecision(3)));
}

/** The divisor as √64 = 8; a divisor that was moved as it is. */
export function rootOf(walk) {
  const width = walk.query[0].length;
  if (walk.divisor === 1) return "1";
  const exact = Math.abs(walk.divisor ** 2 - width) < 1e-3 * width;
  return exact ? `√${width} = ${place(walk, (value) => value.toFixed(2))}` : short(walk.divisor);
}

/** What the sentences speak of: the head, the query token, the key with the most weight. */
class Telling {
  /** @type {any} */
  walk;
  /** @type {any} */
  head;
  /** @type {any} */
  row;
  /** @type {any} */
  edits;
  /** @type {any} */
  keys;
  /** @type {any} */
  plain;
  /** @type {any} */
  place;
  /** @type {any} */
  follows;

  constructor({ walk, row, plain, edits, head, query, keys, picked, place, follows }) {
    Object.assign(this, { walk, row, plain, edits, head, keys, place, follows });
    this.query = named(query);
    this.width = row.query.length;
    const [top] = largest(row.weights, 1);
    this.top = row.rows[top];
    this.best = named(keys[top]);
    this.one = row.rows[picked ?? top];
    this.name = named(keys[this.one.at]);
    this.hidden = row.rows.filter(({ visible }) => !visible).length;
  }

  /** Whether matrices make query, key and value; an RNN compares its states as they are, or in its own way. */
  get projected() {
    return this.walk.position !== "recurrent" && this.walk.score !== "other";
  }

  by(matrix) {
    return this.projected ? ` by ${matrix}` : "";
  }

  querySentences() {
    const { walk, head, query, width } = this;
    const from = walk.position === "recurrent" ? "the decoder's hidden state" : "the residual stream";
    const of = walk.kind === "cross" ? `${from} before ${query}` : `${from} of ${query}`;
    return `A query says what a token looks for. ${head} made these ${width} numbers from ${of}${this.by("W_Q")}.`;
  }

  keySentences() {
    const { row, query, width } = this;
    const whose = this.walk.kind === "cross" ? "source token" : "token";
    const made = this.projected ? " that W_K makes" : "";
    const offered = `Each ${whose} offers a key, ${width} numbers${made}, by which it can be found.`;
    return `${offered} The query of ${query} is compared with ${count(row.rows.length, "key")}.`;
  }

  productSentences() {
    const { walk, one, query, name, width } = this;
    const parts = walk.additive ? "numbers" : "products";
    const total = `${query} and ${name}: ${width} ${parts} add up to ${short(one.sum)}.`;
    if (walk.score === "other") {
      return `This module computes its scores in its own way. ${query} and ${name}: ${short(one.score)}.`;
    }
    if (walk.score === "additive") {
      return `Query plus key, bent by tanh and times a learned vector w, number by number: an additive score. ${total}`;
    }
    const more = "The more alike the two are, and the longer, the larger the sum";
    return `${more} of query times key, number by number. ${total}`;
  }

  scaleSentences() {
    const { walk, row, edits, one, name, width } = this;
    const now = `${name}: ${short(one.sum)} / ${short(row.divisor)} = ${short(one.scaled)}.`;
    if (edits.divisor !== null && edits.divisor < walk.divisor) {
      const apart = `Divided by ${short(edits.divisor)} instead of ${short(walk.divisor)}, scores lie further apart.`;
      return `${apart} ${this.insteadSentence()}`;
    }
    if (edits.divisor !== null && edits.divisor > walk.divisor) {
      const near = `Divided by ${short(edits.divisor)} instead of ${short(walk.divisor)}, scores lie close together.`;
      return `${near} ${this.insteadSentence()}`;
    }
    if (walk.divisor === 1) return `This score is not divided: it enters the softmax as it is. ${now}`;
    const why = `a sum of ${width} products is so large that softmax would pick one token alone`;
    return `Divided by ${rootOf(walk)}, since ${why}. ${now}`;
  }

  insteadSentence() {
    const { top, best, plain } = this;
    const [before, now] = change(plain.weights[top.at], top.weight);
    return `Softmax then gives ${best} ${now} instead of ${before}.`;
  }

  maskSentences() {
    const { walk, row, edits, hidden, query, one, name } = this;
    const bias = walk.bias ? this.biasSentence(one, name) : "";
    if (edits.lifted) {
      return `The mask is lifted: ${query} now looks at every token, as it never did in training. ${bias}`.trim();
    }
    if (hidden === 0) {
      const reason = walk.kind === "cross" ? "every source token" : "every token, before and after it";
      const all = row.token === row.rows.length - 1 && walk.visible[0].some((see) => !see);
      if (all)
        return `The causal mask hides what follows a token. Nothing follows ${query}, so it sees all. ${bias}`.trim();
      return `No mask here: ${query} may look at ${reason}. ${bias}`.trim();
    }
    const later = row.rows.every(({ at, visible }) => visible === at <= row.token);
    const why = `The causal mask hides what follows ${query}, which the model learns to predict`;
    const which = later ? why : `The mask hides tokens from ${query}`;
    const none = `${count(hidden, "token")} of ${row.rows.length} get the score −∞ and no weight.`;
    return `${which}. ${bias || none}`;
  }

  biasSentence(one, name) {
    if (this.walk.slope) return `ALiBi adds ${short(one.bias)} to ${name}: the further away, the less.`;
    return `The distance to ${name} adds ${short(one.bias)} to its score.`;
  }

  softmaxSentences() {
    const { row, plain, edits, head, query } = this;
    if (edits.weights[row.token]) {
      const rest = "The other weights were scaled, so that the sum is still 100%.";
      return `You set the weights of ${query}. ${rest}`;
    }
    if (edits.divisor !== null) return this.scaleSentences();
    if (row !== plain) return this.changedSentences();
    const bits = entropy(row.weights).toFixed(2);
    const rounded = Number(row.alike.toFixed(row.alike < 10 ? 1 : 0));
    const many = rounded === 1 ? "one token alone" : `2^${bits} = ${rounded} tokens alike`;
    const looks = `${head} lets ${query} look with an entropy of ${bits} bits, as if at ${many}.`;
    return `Softmax turns scores into weights that are together 100%${this.calculation()}. ${looks}`;
  }

  /** How one score becomes a weight: that of the chosen row, or of the one with the most weight. */
  calculation() {
    const { row, one, top, keys } = this;
    const shown = one.visible ? one : top;
    const power = Math.exp(shown.score);
    const all = sum(row.rows.map(({ score }) => Math.exp(score)));
    if (!Number.isFinite(all) || all === 0 || power === 0) return "";
    const parts = `e^${short(shown.score)} = ${figure(power)}, divided by the sum of all, ${figure(all)}`;
    return `; ${named(keys[shown.at])}: ${parts}, is ${percent(shown.weight)}`;
  }

  /** What an edit other than the divisor did to the weights. */
  changedSentences() {
    const { row, plain, query, keys } = this;
    const moved = row.weights.map((weight, at) => weight - plain.weights[at]);
    const [at] = largest(moved, 1, true);
    const [before, now] = change(plain.weights[at], row.weights[at]);
    const other = "Your changes give other scores, and softmax makes other weights of them.";
    return `${other} The weight from ${query} to ${named(keys[at])} goes from ${before} to ${now}.`;
  }

  valueSentences() {
    const { row, keys } = this;
    const [first, second] = largest(row.weights, 2);
    const more = second === undefined ? "" : `, ${round(row.weights[second])} of that of ${named(keys[second])}`;
    const most = `${round(row.weights[first])} of that of ${named(keys[first])}`;
    const parts = `Each is multiplied by its weight: ${most}${more}.`;
    const made = this.projected ? ", made by W_V" : "";
    return `A value is what a token hands over when it is looked at${made}. ${parts}`;
  }

  sumSentences() {
    const { row, top, query, best } = this;
    const near = cosine(row.output, top.value).toFixed(2).replace("-", "−");
    const out = `The weighted values are added up: ${row.output.length} numbers that the head hands on for ${query}.`;
    const same = "1 is the same direction";
    return `${out} Their cosine with the value of ${best}, which has the most weight, is ${near} (${same}).`;
  }

  writtenSentences() {
    const { walk, row, query } = this;
    if (!walk.written) return `The decoder reads this vector beside its own hidden state. It has no residual stream.`;
    const to = walk.written[row.token].length;
    const made = `The output projection makes ${to} numbers of these ${row.output.length}.`;
    if (!walk.lengths) return `${made} They are added to the residual stream of ${query}.`;
    const [before, own, after] = ["before", "written", "after"].map((name) => short(walk.lengths[name][row.token]));
    const lengths = `a vector of length ${own} changes its length from ${before} to ${after}`;
    return `${made} Added to the residual stream, ${lengths}.`;
  }

  lensSentences() {
    const { walk, row, place, follows } = this;
    if (walk.position === "recurrent") {
      const mixed = "The decoder mixes this vector with its own hidden state before it predicts a token.";
      return `${mixed} What the vector alone changed cannot be told apart.`;
    }
    if (!walk.lens)
      return `This attention is not followed by a prediction of tokens. The layers above read what it wrote.`;
    const [[text, , before, after] = []] = walk.lens.changed[row.token];
    const [[likeliest]] = walk.lens.after[row.token];
    const what = follows ? "the next token" : "the token here";
    const read = `If the model stopped here, after this head of ${place}, ${what} would be ${quoted(likeliest)}.`;
    if (text === undefined || before === after) return `${read} This head alone changes no probability.`;
    const way = after > before ? "rises" : "falls";
    const [first, second] = change(before, after);
    return `${read} The largest change by it: ${quoted(text)} ${way} from ${first} to ${second}.`;
  }
}

/** The two sentences of a step. */
export function sentences(step, told) {
  return new Telling(told)[`${step}Sentences`]();
}

/** One number of the vectors: of the row `at`, or of the picked one. */
export function numberText({ walk, row, keys, picked, step }, at, index) {
  const one = row.rows[at ?? picked];
  const name = named(keys[one.at]);
  const count = row.query.length;
  if (step >= 7) {
    if (index >= row.output.length) return "";
    const [value, output] = [one.value[index], row.output[index]];
    const product = `${short(value)} × ${(100 * one.weight).toFixed(1)}% = ${short(value * one.weight)}`;
    return `Number ${index + 1} of ${row.output.length}, value of ${name}: ${product}; all tokens: ${short(output)}`;
  }
  if (index >= count) return "";
  const start = `Number ${index + 1} of ${count}: query ${short(row.query[index])}`;
  if (step === 1) return start;
  const key = `key of ${name} ${short(one.key[index])}`;
  if (step === 2) return `${start}, ${key}`;
  const term = short(one.terms[index]);
  return walk.additive ? `${start}, ${key}: w · tanh(sum) = ${term}` : `${start} × ${key} = ${term}`;
}
