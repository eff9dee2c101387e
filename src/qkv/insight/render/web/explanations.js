// @ts-check
// What each view shows, in one sentence, and the formula behind it. All texts of "What is this?" are here.

import { element } from "qkv/elements.js";

/**
 * A formula: *a* is a variable, _{i} an index, ^{2} a power. A screen reader says `said`.
 * @param {string} said
 * @param {string} written
 */
const formula = (said, written) => ({ said, written });

const ATTENTION = formula(
  "attention of Q, K and V is softmax of Q times K transposed, divided by the square root of d, plus the mask, times V",
  "attention(*Q*, *K*, *V*) = softmax( *Q* *K*^{⊤} / √*d* + mask ) *V*",
);
const WEIGHT = formula(
  "the weight of key j for query i is softmax over j of q i times k j divided by the square root of d",
  "*a*_{*ij*} = softmax_{*j*}( *q*_{*i*} · *k*_{*j*} / √*d* )",
);

/** @type {Record<string, {sentence: string, formulas: {said: string, written: string}[], text: string[]}>} */
export const EXPLANATIONS = {
  walk: {
    sentence: "How one head computes its output for one token, step by step.",
    formulas: [ATTENTION],
    text: [
      "Each token has a query, a key and a value: three vectors that the layer computes from the residual stream. " +
        "The query of the chosen token is multiplied with the key of every token that it may look at; " +
        "the products are divided by √d, masked, and turned by softmax into weights that sum to 100%.",
      "The head adds up the values, each times its weight. That sum is what it writes to the residual stream, " +
        "after the output projection.",
    ],
  },
  model: {
    sentence: "One token on its way through the whole model, from its id to the draw of the next token.",
    formulas: [
      formula(
        "h is the embedding plus the position; each block adds attention of the norm of h, then feed-forward of the norm of h; " +
          "the probabilities are softmax of the output layer applied to the last norm of h",
        "*h* ← *h* + attention(norm(*h*)),   *h* ← *h* + feed-forward(norm(*h*)),   *p* = softmax( *W* norm(*h*) )",
      ),
    ],
    text: [
      "The residual stream is the vector of one token that all blocks read and add to. The width of the band is its length, " +
        "the bars are the lengths of what attention and feed-forward add, and beside them is the token that the output " +
        "layer would predict there. A post-norm model norms each sum instead of what its parts read.",
      "A block opens on Enter or a click: its norms, additions and heads. A head opens its walk, number by number.",
    ],
  },
  head: {
    sentence: "How much each token looks at each other token, in one head.",
    formulas: [WEIGHT],
    text: [
      "A row is a query, a column a key. The weight says how much of that key's value the head adds to its output " +
        "for the query. The weights of a row sum to 100%.",
      "In a causal model a token sees itself and what is before it; the cells of later tokens are masked.",
    ],
  },
  heads: {
    sentence: "Every head of the model at a glance: layers down, heads across.",
    formulas: [
      formula(
        "the entropy of token i is minus the sum over j of the weight a i j times its logarithm to base 2",
        "*H*_{*i*} = − Σ_{*j*} *a*_{*ij*} log_{2} *a*_{*ij*}",
      ),
    ],
    text: [
      "Each tile is the heat map of one head, small. A diagonal is a head that looks at a fixed distance; " +
        "a column is a head that looks at one token, often the first.",
      "Entropy is low where a head looks at few tokens and high where it looks at many: 3 bits are as if it looked at " +
        "8 tokens alike. Distance is the mean number of tokens between query and key.",
    ],
  },
  lines: {
    sentence: "Lines from each token to the tokens that it looks at; the thicker, the more weight.",
    formulas: [WEIGHT],
    text: [
      "The lines are the weights of the heat map, drawn between the tokens themselves. " +
        "Several heads can be kept, each in its own colour.",
    ],
  },
  next: {
    sentence: "Which tokens the model expects, with their probabilities.",
    formulas: [
      formula(
        "the probability of token v is softmax over v of the logit of v, which is the last residual stream times its output vector",
        "*p*(*v*) = softmax_{*v*}( *h* · *u*_{*v*} )",
      ),
    ],
    text: [
      "After the last layer, the residual stream h at a position is multiplied with the output vector u of each token " +
        "of the vocabulary. These products are the logits; softmax turns them into probabilities that sum to 100%.",
    ],
  },
  lens: {
    sentence: "What the model would predict if it stopped after each layer.",
    formulas: [
      formula(
        "the probability of token v after layer l is softmax of the unembedding applied to the norm of the residual stream after layer l",
        "*p*_{*ℓ*}(*v*) = softmax_{*v*}( norm(*h*_{*ℓ*}) · *u*_{*v*} )",
      ),
    ],
    text: [
      "The logit lens applies the model's last norm and its output layer to the residual stream after an earlier layer. " +
        "A cell has the likeliest token there and its probability.",
      "Only the last row is what the model really predicts; the rows above show how the prediction forms.",
    ],
  },
  norms: {
    sentence: "How long the vector of each token is after each layer.",
    formulas: [
      formula(
        "the norm of h is the square root of the sum of its squares; layer l adds its attention and feed-forward output to h",
        "‖*h*‖ = √( Σ_{*i*} *h*_{*i*}^{2} ),   *h*_{*ℓ*+1} = *h*_{*ℓ*} + block_{*ℓ*}(*h*_{*ℓ*})",
      ),
    ],
    text: [
      "Each layer adds to the residual stream, so its norm usually grows. A gradient norm that falls from the last layer " +
        "to the first is a vanishing gradient.",
    ],
  },
  attribution: {
    sentence: "Where a head looks, beside the tokens that the prediction depends on.",
    formulas: [
      formula(
        "the share of token j is proportional to the absolute value of the gradient of the prediction with respect to the embedding x j, times x j",
        "*s*_{*j*} ∝ | ∂*y*/∂*x*_{*j*} · *x*_{*j*} |",
      ),
      formula(
        "the logit is the sum over all parts of the output vector of the token times what the part wrote, divided by the scale of the whole residual stream, plus the bias",
        "*y* = Σ_{parts} *w* · *h*_{part} / scale(*h*) + bias",
      ),
    ],
    text: [
      "Attribution multiplies the embedding of each token with the gradient of the predicted token's score, and divides " +
        "by the sum over all tokens. It covers the whole model; attention weights are those of one head.",
      "The two need not agree: a head can look at a token without using it.",
      "Below, the logit itself as a sum: the embedding, every head and every feed-forward layer add a vector to the " +
        "residual stream, and the output layer is linear. The last norm divides each part by the scale of the whole " +
        "stream. Only the direct path counts: what a head changes for a later " +
        "layer is counted there.",
    ],
  },
};

/**
 * The notation of `formula` as nodes: italic variables, indices and powers.
 * @param {string} written
 * @returns {(Node | string)[]}
 */
export function typeset(written) {
  return written.split(/(\*[^*]+\*|[_^]\{[^}]*\})/u).map((part) => {
    if (part.startsWith("*")) return element("i", {}, part.slice(1, -1));
    if (/^[_^]\{/u.test(part)) return element(part[0] === "_" ? "sub" : "sup", {}, ...typeset(part.slice(2, -1)));
    return part;
  });
}

/** The sentence above a view, and what unfolds below it. It stays open from view to view. */
export class Explanation {
  constructor() {
    this.sentence = element("span", { class: "sentence" });
    this.body = element("div", { class: "what-body" });
    this.summary = element("summary", {}, "What is this?");
    this.details = element("details", { class: "what" }, this.summary, this.body);
    this.element = element(
      "div",
      { class: "about-view", role: "region", "aria-label": "About this view" },
      this.sentence,
      this.details,
    );
    this.shown = "";
  }

  /** @param {string} view */
  show(view) {
    if (this.shown === view) return;
    this.shown = view;
    const known = EXPLANATIONS[view];
    this.element.hidden = !known;
    if (!known) return;
    this.sentence.textContent = known.sentence;
    this.body.replaceChildren(
      ...known.formulas.map(({ said, written }) =>
        element("p", { class: "what-formula", role: "math", "aria-label": said }, ...typeset(written)),
      ),
      ...known.text.map((text) => element("p", {}, text)),
    );
  }
}
