// @ts-check
// The steps of the walk: their names, and two sentences for each with the numbers of this head.

import { percent } from "qkv/elements.js";
import { quoted } from "qkv/token_text.js";
import { short } from "qkv/vector_strip.js";
import { cosine, largest } from "qkv/walk_math.js";

const round = (weight) => (weight >= 0.095 ? `${Math.round(100 * weight)}%` : percent(weight));
const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
const place = (walk, of) => (Number.isInteger(walk.divisor) ? `${walk.divisor}` : of(walk.divisor));

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

  constructor({ walk, row, plain, edits, head, query, keys, picked }) {
    Object.assign(this, { walk, row, plain, edits, head, keys });
    this.query = quoted(query);
    this.width = row.query.length;
    const [top] = largest(row.weights, 1);
    this.top = row.rows[top];
    this.best = quoted(keys[top]);
    this.one = row.rows[picked ?? top];
    this.name = quoted(keys[this.one.at]);
    this.hidden = row.rows.filter(({ visible }) => !visible).length;
  }

  before({ at }) {
    return this.plain.weights[at];
  }

  querySentences() {
    const { walk, head, query, width } = this;
    const from = walk.position === "recurrent" ? "the decoder's hidden state" : "the residual stream";
    const of = walk.kind === "cross" ? `${from} before ${query}` : `${from} of ${query}`;
    return `A query says what a token looks for. ${head} made these ${width} numbers from ${of}.`;
  }

  keySentences() {
    const { row, query, width } = this;
    const whose = this.walk.kind === "cross" ? "source token" : "token";
    const offered = `Each ${whose} offers a key, ${width} numbers by which it can be found.`;
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
    return `Query times key, number by number, then added up: the more alike the two are, the larger the sum. ${total}`;
  }

  scaleSentences() {
    const { walk, row, edits, one, top, name, best, width } = this;
    const now = `${name}: ${short(one.sum)} / ${short(row.divisor)} = ${short(one.scaled)}.`;
    if (edits.divisor !== null && edits.divisor < walk.divisor) {
      const apart = `Divided by ${short(edits.divisor)} instead of ${short(walk.divisor)}, scores lie further apart.`;
      return `${apart} Softmax then gives ${best} ${round(top.weight)} instead of ${round(this.before(top))}.`;
    }
    if (edits.divisor !== null && edits.divisor > walk.divisor) {
      const near = `Divided by ${short(edits.divisor)} instead of ${short(walk.divisor)}, scores lie close together.`;
      return `${near} Softmax then gives ${best} ${round(top.weight)} instead of ${round(this.before(top))}.`;
    }
    if (walk.divisor === 1) return `This score is not divided: it enters the softmax as it is. ${now}`;
    const why = `a sum of ${width} products is so large that softmax would pick one token alone`;
    return `Divided by ${rootOf(walk)}, since ${why}. ${now}`;
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
    const { row, plain, edits, head, top, best, query } = this;
    if (edits.weights[row.token]) {
      const rest = "The other weights were scaled, so that the sum is still 100%.";
      return `You set the weights of ${query}. ${rest}`;
    }
    if (edits.divisor !== null) return this.scaleSentences();
    if (row !== plain) return this.changedSentences();
    const rounded = Number(row.alike.toFixed(row.alike < 10 ? 1 : 0));
    const many = rounded === 1 ? "as if it looked at one token alone" : `as if it looked at ${rounded} tokens alike`;
    const looks = `${head} lets ${query} look at ${best} with ${round(top.weight)}: ${many}.`;
    return `Softmax turns scores into weights: all positive, together 100%. ${looks}`;
  }

  /** What an edit other than the divisor did to the weights. */
  changedSentences() {
    const { row, plain, query, keys } = this;
    const moved = row.weights.map((weight, at) => weight - plain.weights[at]);
    const [at] = largest(moved, 1, true);
    const change = `from ${round(plain.weights[at])} to ${round(row.weights[at])}`;
    const other = "Your changes give other scores, and softmax makes other weights of them.";
    return `${other} The weight from ${query} to ${quoted(keys[at])} goes ${change}.`;
  }

  valueSentences() {
    const { row, keys } = this;
    const [first, second] = largest(row.weights, 2);
    const more = second === undefined ? "" : `, ${round(row.weights[second])} of that of ${quoted(keys[second])}`;
    const most = `${round(row.weights[first])} of that of ${quoted(keys[first])}`;
    const parts = `Each is multiplied by its weight: ${most}${more}.`;
    return `A value is what a token hands over when it is looked at. ${parts}`;
  }

  sumSentences() {
    const { row, top, query, best } = this;
    const near = cosine(row.output, top.value).toFixed(2).replace("-", "−");
    const out = `The weighted values are added up: ${row.output.length} numbers that the head hands on for ${query}.`;
    return `${out} Their cosine with the value of ${best}, which has the most weight, is ${near}.`;
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
    const { walk, row, query } = this;
    if (walk.position === "recurrent") {
      const mixed = "The decoder mixes this vector with its own hidden state before it predicts a token.";
      return `${mixed} What the vector alone changed cannot be told apart.`;
    }
    if (!walk.lens)
      return `This attention is not followed by a prediction of tokens. The layers above read what it wrote.`;
    const [[text, , before, after] = []] = walk.lens.changed[row.token];
    const read = `The output layer reads ${query} before and after this one head.`;
    if (text === undefined || before === after) return `${read} No probability changes.`;
    const way = after > before ? "rises" : "falls";
    return `${read} The largest change: ${quoted(text)} ${way} from ${percent(before)} to ${percent(after)}.`;
  }
}

/** The two sentences of a step. */
export function sentences(step, told) {
  return new Telling(told)[`${step}Sentences`]();
}

/** One number of the vectors: of the row `at`, or of the picked one. */
export function numberText({ walk, row, keys, picked, step }, at, index) {
  const one = row.rows[at ?? picked];
  const name = quoted(keys[one.at]);
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
