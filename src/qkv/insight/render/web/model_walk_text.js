// @ts-check
// Two sentences for each place of the whole model, with the numbers of this model, text and token.

import { percent } from "qkv/elements.js";
import { brief, ofSource, placeOf, stackAt } from "qkv/model_walk_places.js";
import { quoted } from "qkv/token_text.js";

const count = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;
const change = (before, after) => (after > before ? "grows" : "shrinks");

/** What positions do in this model, where they are not joined to the embedding. */
const POSITIONS = {
  rotary: "Positions come later: attention turns each query and key by an angle that grows with the position.",
  alibi: "Positions come later: attention lowers the score of a key the further away it is.",
  relative: "Positions come later: attention adds a number for each distance to the scores.",
  none: "Nothing tells the model the position of a token but its causal mask, if it has one.",
  own: "Positions are added by a module of the user's own.",
};
const JOINED = { sum: "is added", product: "is multiplied with it", concatenate: "is put beside it" };

class PlaceText {
  /** @type {any} */
  walk;
  /** @type {any} */
  token;
  /** @type {any} */
  stack;
  /** @type {any} */
  layer;
  /** @type {any} */
  part;
  /** @type {any} */
  follows;
  /** @type {any} */
  action;
  /** @type {any} */
  name;

  constructor({ walk, place, token, name, follows }) {
    Object.assign(this, { walk, token, follows, ...placeOf(walk, place) });
    this.place = place;
    this.text = quoted(name);
    this.side = walk.sides[ofSource(walk, place) ? 1 : 0];
    this.which = follows ? "next token" : "token here";
  }

  tokens() {
    const whose = this.walk.sides.length > 1 ? "target" : "text";
    return this.listed(whose);
  }

  source() {
    return this.listed("source");
  }

  listed(whose) {
    const { side, token, text } = this;
    const start = `The ${whose} is ${count(side.tokens.length, "token")}, each a number of the vocabulary.`;
    return `${start} ${text} is token ${side.ids[token]}, at position ${token}.`;
  }

  embedding() {
    const { walk, place, token, text } = this;
    const stack = stackAt(walk, place);
    if (!stack) return this.recurrentEmbedding();
    const { embedding } = stack;
    const length = brief(embedding.token.lengths[token]);
    const row = `The id picks a row of the embedding matrix: ${embedding.token.drawn.width} numbers for ${text}, of length ${length}.`;
    if (!embedding.position) return `${row} ${POSITIONS[walk.positions.kind] ?? POSITIONS.none}`;
    const joined = `The vector of position ${token}, of length ${brief(embedding.position.lengths[token])}, ${JOINED[embedding.join]}`;
    const more = embedding.segment ? ", and that of its segment" : "";
    return `${row} ${joined}${more}${embedding.normed ? ", then a norm follows" : ""}.`;
  }

  source_embedding() {
    return this.embedding();
  }

  recurrentEmbedding() {
    const { walk, place, token, text } = this;
    const { drawn, lengths } = walk.steps.find(({ name }) => name === place);
    const row = `The id picks a row of the embedding matrix: ${drawn.width} numbers for ${text}, of length ${brief(lengths[token])}.`;
    return `${row} Positions are not encoded: an RNN reads one token after the other.`;
  }

  // An RNN

  recurrent() {
    const { walk, place, token } = this;
    const step = walk.steps.find(({ name }) => name === place);
    return { width: step.drawn.width, length: brief(step.lengths[token]) };
  }

  encoder() {
    const { width, length } = this.recurrent();
    const state = `The encoder reads the source and keeps a state for each token, ${width} numbers.`;
    return `${state} That of ${this.text} has length ${length}.`;
  }

  query() {
    const { length } = this.recurrent();
    const state = `Before it reads ${this.text}, the decoder's state has length ${length}.`;
    return `${state} It is the query with which the decoder looks at the source.`;
  }

  context() {
    const { length } = this.recurrent();
    const sum = "Attention adds up the encoder's states, each times its weight: the context vector.";
    return `${sum} At ${this.text} it has length ${length}.`;
  }

  state() {
    const { length } = this.recurrent();
    const has = this.walk.steps.some(({ name }) => name === "context");
    const from = has ? "the embedding, the context vector and the state before" : "the embedding and the state before";
    return `The recurrent cell makes its new state from ${from}. After ${this.text} its length is ${length}.`;
  }

  hidden() {
    const { length } = this.recurrent();
    return `State and context are joined in one layer with tanh. The result at ${this.text} has length ${length}, and the output layer reads it.`;
  }

  // Blocks

  block() {
    const { stack, layer, token, text, walk } = this;
    const parts = stack.blocks[layer];
    const named = { attention: "attention", cross_attention: "cross-attention", feed_forward: "feed-forward", block: "it" };
    const lengths = parts.map(({ name, added }) => `${named[name]} ${brief(added[token])}`);
    const adds = `Block ${layer} adds to the residual stream of ${text}, in lengths: ${lengths.join(", ")}.`;
    const [before, after] = [parts[0].before[token], parts.at(-1).after[token]];
    const stream = `The stream ${change(before, after)} from ${brief(before)} to ${brief(after)}`;
    const guess = stack === walk.stacks.at(-1) && walk.lens?.[layer + 1]?.[token]?.[0];
    if (!guess) return `${adds} ${stream}.`;
    return `${adds} ${stream}; read out here, the likeliest ${this.which} is ${quoted(guess[0])}, ${percent(guess[2])}.`;
  }

  norm_part() {
    const { part, token, text, stack } = this;
    if (stack.norm === "before") {
      const [before, read] = [brief(part.before[token]), brief(part.read[token])];
      return `The norm brings a copy of the stream of ${text} from length ${before} to ${read}, and the next part reads it. The stream itself stays as it is.`;
    }
    const [sum, after] = [brief(part.sum[token]), brief(part.after[token])];
    return `The norm brings the sum from length ${sum} to ${after}. This is the residual stream of ${text} from here on.`;
  }

  add_part() {
    const { part, token, text } = this;
    const [before, added, sum] = [part.before, part.added, part.sum].map((lengths) => brief(lengths[token]));
    const total = `The stream of ${text}, of length ${before}, plus ${added}, has length ${sum}.`;
    const cosine = part.cosine[token] ?? 0;
    const way =
      Math.abs(cosine) < 0.2
        ? "nearly at a right angle, so it is something new"
        : cosine > 0
          ? "it strengthens what is there"
          : "it takes away from what is there";
    return `${total} The cosine of stream and addition is ${cosine.toFixed(2).replace("-", "−")}: ${way}.`;
  }

  attention() {
    const { part, token, text } = this;
    const where = part.name === "cross_attention" ? "the source tokens" : "other tokens";
    const many = part.heads?.length ?? 1;
    const look = `${many === 1 ? "The head lets" : `${many} heads let`} ${text} look at ${where}; together they hand on a vector of length ${brief(part.added[token])}.`;
    if (!part.heads) return `${look} It is added to the residual stream.`;
    const lengths = part.heads.map((head) => head[token]);
    const most = lengths.indexOf(Math.max(...lengths));
    return `${look} Head ${most} adds most, a length of ${brief(lengths[most])}; choose a head to walk it number by number.`;
  }

  feed_forward() {
    const { part, token, text } = this;
    return `Feed-forward reads ${text} alone and looks at no other token. It hands on a vector of length ${brief(part.added[token])}.`;
  }

  whole_part() {
    const { part, token, text } = this;
    return `This block is a module of the user's own. It changes the stream of ${text} by a vector of length ${brief(part.added[token])}.`;
  }

  // The end

  norm() {
    const { walk, token, text } = this;
    const stack = walk.stacks.at(-1);
    const before = brief(stack.blocks.at(-1).at(-1).after[token]);
    return `After the last block a norm brings the stream of ${text} from length ${before} to ${brief(stack.output[token])}. The output layer reads this vector.`;
  }

  output() {
    const { walk, token, text } = this;
    const length = brief(walk.stacks.at(-1)?.output[token]);
    return `This model predicts no tokens: its last vectors are the result. That of ${text} has length ${length}.`;
  }

  logits() {
    const [first, second] = this.walk.next[this.token];
    const all = `The output layer compares the vector with every token of the vocabulary, ${this.walk.vocabulary.toLocaleString("en")} in all: a logit for each.`;
    const then = second ? `, then comes ${quoted(second[0])} with ${brief(second[2])}` : "";
    return `${all} The largest is that of ${quoted(first[0])}, ${brief(first[2])}${then}.`;
  }

  softmax() {
    const [first, second] = this.walk.next[this.token];
    const all = `Softmax makes probabilities of the logits: all positive, together 100%; ${quoted(first[0])} gets ${percent(first[3])}.`;
    if (!second?.[3]) return all;
    const times = first[3] / second[3];
    const apart = Math.log(times);
    return `${all} Its logit is ${brief(apart)} larger than that of ${quoted(second[0])}, so its probability is e^${brief(apart)} = ${brief(times)} times as large.`;
  }

  draw() {
    const what = this.follows ? `what follows ${this.text}` : `the token at ${this.text}`;
    return `A number between 0 and 1 is drawn, and the token on whose share it falls is ${what}. The same seed draws the same token.`;
  }
}

/** The two sentences of a place. */
export function placeText(told) {
  const text = new PlaceText(told);
  const { stack, part, action } = text;
  if (!stack) return text[text.name]();
  if (!part) return text.block();
  if (action !== "part") return text[`${action}_part`]();
  if (part.name === "block") return text.whole_part();
  return part.name === "feed_forward" ? text.feed_forward() : text.attention();
}
