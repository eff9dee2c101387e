// @ts-check
// A conversation as a tree: an edited message or another answer is a branch beside the old one, which is kept.

import { parsed } from "./settings.js";

const STORED = "qkv.conversation";
const MOST = 1_500_000; // characters in the storage of the browser tab
const ROOT = -1;

/** The messages of an address. */
export function linkedMessages(talk) {
  /** @type {(message: any) => boolean} */
  const known = ({ role, content } = {}) => ["user", "assistant"].includes(role) && typeof content === "string";
  const stored = parsed(talk, []);
  return Array.isArray(stored) ? stored.filter((message) => known(message ?? {})) : [];
}

/** A node is {parent, role, content}, and for an answer {model, prompt, tokens, reason}: `prompt` are the ids before
 * it. `chosen` has the shown child of each node. Nothing is changed in place, so that undo keeps the old one. */
export class Conversation {
  /** @type {any} */
  nodes;
  /** @type {any} */
  chosen;

  constructor(nodes = [], chosen = {}) {
    Object.assign(this, { nodes, chosen });
  }

  /** A conversation without branches. */
  static of(messages) {
    const nodes = messages.map(({ role, content }, index) => ({ parent: index - 1, role, content }));
    return new Conversation(nodes, Object.fromEntries(nodes.map(({ parent }, index) => [parent, index])));
  }

  /** The indices of the shown nodes. */
  get path() {
    const path = [];
    for (let at = this.chosen[ROOT]; at !== undefined; at = this.chosen[at]) path.push(at);
    return path;
  }

  get last() {
    return this.path.at(-1) ?? ROOT;
  }

  /** The messages up to a node, by default all that are shown. */
  messages(upTo = this.last) {
    const list = [];
    for (let at = upTo; at !== ROOT; at = this.nodes[at].parent) list.unshift(this.nodes[at]);
    return list.map(({ role, content }) => ({ role, content }));
  }

  /** The branches at the place of a node, itself included. */
  branches(index) {
    const { parent } = this.nodes[index];
    return [...this.nodes.keys()].filter((other) => this.nodes[other].parent === parent);
  }

  /** With a new node, which is shown. */
  add(parent, node) {
    const index = this.nodes.length;
    return new Conversation([...this.nodes, { ...node, parent }], { ...this.chosen, [parent]: index });
  }

  /** With another branch shown. */
  choose(index) {
    return new Conversation(this.nodes, { ...this.chosen, [this.nodes[index].parent]: index });
  }

  /** With a longer answer in place of a node. */
  replace(index, changes) {
    const nodes = this.nodes.map((node, at) => (at === index ? { ...node, ...changes } : node));
    return new Conversation(nodes, this.chosen);
  }

  /** Stores it for a reload: if it is too large without the alternatives, and else only what is shown. */
  store() {
    const bare = ({ alternatives: _, ...token }) => token;
    const lighter = this.nodes.map((node) => (node.tokens ? { ...node, tokens: node.tokens.map(bare) } : node));
    const shown = Conversation.of(this.messages());
    for (const { nodes, chosen } of [this, { nodes: lighter, chosen: this.chosen }, shown]) {
      const text = JSON.stringify({ nodes, chosen });
      if (text.length > MOST) continue;
      try {
        sessionStorage.setItem(STORED, text);
        return;
      } catch {
        // too large: store less
      }
    }
  }

  static stored() {
    try {
      const { nodes, chosen } = JSON.parse(sessionStorage.getItem(STORED));
      return new Conversation(nodes, chosen);
    } catch {
      return new Conversation();
    }
  }
}
