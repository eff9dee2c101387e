// @ts-check
// The models of the server: what each can do, and whether it is loaded.

import { Problem, fetchJson } from "./api.js";

/** The title of each tab, and what a model must be able to do for it. */
export const TABS = {
  look: ["Look", "attention"],
  write: ["Complete", "complete"],
  chat: ["Chat", "chat"],
  translate: ["Translate", "translate"],
  fill: ["Fill", "fill"],
  classify: ["Classify", "classify"],
};
const SOON = 1000; // milliseconds between two checks whether a model is loaded, or the server is back

export class Models {
  /** @type {() => void} */
  back;
  /** @type {() => void} */
  changed;

  /** Calls `changed()` after a change, and `back()` before it when the server responds again. */
  constructor(changed, back) {
    Object.assign(this, { changed, back });
    this.list = [];
    this.chosen = new Map(); // by tab
    this.known = false; // whether the server has responded
    this.problem = null;
    this.watching = false;
  }

  /** The models for a tab. A model that is still loading may not list what it can do: it is included. */
  of(tab) {
    const can = TABS[tab][1];
    return this.list.filter(({ qkv }) => qkv.can.includes(can) || (qkv.state === "loading" && !qkv.can.length));
  }

  /** The models that can only be looked at, or not even this. */
  get unused() {
    const { look, ...tasks } = TABS;
    const does = Object.values(tasks).map(([, can]) => can);
    return this.list.filter(({ qkv: { state, can } }) => state === "ready" && !can.some((task) => does.includes(task)));
  }

  get failed() {
    return this.list.filter(({ qkv }) => qkv.state === "failed");
  }

  /** The named model if it fits the tab, else one that is ready (the same as before), else any, or null. */
  choose(tab, name) {
    const able = this.of(tab);
    const named = able.find(({ id }) => id === name);
    if (named) return named;
    const ready = able.filter(({ qkv }) => qkv.state === "ready");
    const chosen = ready.find(({ id }) => id === this.chosen.get(tab)) ?? ready[0] ?? able[0] ?? null;
    if (ready.includes(chosen)) this.chosen.set(tab, chosen.id); // it stays when another one becomes ready
    return chosen;
  }

  async load() {
    const before = this.problem;
    try {
      const { data } = await fetchJson("/v1/models");
      const states = data.some(({ qkv }) => qkv.state === "failed") ? (await fetchJson("/health")).models : {};
      this.list = data.map((model) => ({ ...model, qkv: { ...model.qkv, error: states[model.id]?.error ?? null } }));
      this.known = true;
      this.problem = null;
    } catch (problem) {
      this.problem = problem;
    }
    if (before && !this.problem) this.back();
    this.changed();
    const unsettled = this.problem ? this.problem.status !== 401 : this.list.some(({ qkv }) => qkv.state === "loading");
    if (unsettled) this.watch();
  }

  /** Polls /health until something changes, then loads the models. */
  async watch() {
    if (this.watching) return;
    this.watching = true;
    const before = this.problem ? null : this.states(this.list.map(({ id, qkv }) => [id, qkv.state]));
    for (;;) {
      await new Promise((resume) => setTimeout(resume, SOON));
      try {
        const { models } = await fetchJson("/health");
        const now = this.states(Object.entries(models).map(([name, { state }]) => [name, state]));
        if (this.problem || now !== before) break;
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        if (problem.status === 0 && !this.problem) this.lost(problem);
        if (problem.status !== 0 && this.problem?.status === 0) break;
      }
    }
    this.watching = false;
    await this.load();
  }

  states(pairs) {
    return JSON.stringify(pairs.sort(([one], [other]) => (one < other ? -1 : 1)));
  }

  /** The server does not respond: waits until it does. */
  lost(problem) {
    this.problem = problem;
    this.changed();
    this.watch();
  }
}
