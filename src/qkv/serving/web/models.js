// The models of the server: what each can do, and whether it is there yet.

import { Problem, ask } from "./api.js";

/** What a tab asks of a model. */
export const TABS = {
  write: ["Write", "complete"],
  chat: ["Chat", "chat"],
  translate: ["Translate", "translate"],
  fill: ["Fill", "fill"],
  classify: ["Classify", "classify"],
};
const SOON = 1000; // milliseconds between two questions whether a model is loaded, or the server back

export class Models {
  /** `changed()` is called when there is news, `back()` before it when the server answers again. */
  constructor(changed, back) {
    Object.assign(this, { changed, back });
    this.list = [];
    this.known = false; // whether the server has answered
    this.problem = null;
    this.watching = false;
  }

  /** Those that can do what a tab does. One that is loading may not know yet: it may. */
  of(tab) {
    const can = TABS[tab][1];
    return this.list.filter(({ qkv }) => qkv.can.includes(can) || (qkv.state === "loading" && !qkv.can.length));
  }

  /** Those that can do nothing that a tab is for. */
  get unused() {
    const does = Object.values(TABS).map(([, can]) => can);
    return this.list.filter(({ qkv: { state, can } }) => state === "ready" && !can.some((each) => does.includes(each)));
  }

  get failed() {
    return this.list.filter(({ qkv }) => qkv.state === "failed");
  }

  /** The named one if it can, else one that is ready, else any. */
  choose(tab, name) {
    const able = this.of(tab);
    return able.find(({ id }) => id === name) ?? able.find(({ qkv }) => qkv.state === "ready") ?? able[0] ?? null;
  }

  async load() {
    const before = this.problem;
    try {
      const { data } = await ask("/v1/models");
      const states = data.some(({ qkv }) => qkv.state === "failed") ? (await ask("/health")).models : {};
      this.list = data.map((each) => ({ ...each, qkv: { ...each.qkv, error: states[each.id]?.error ?? null } }));
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

  /** Asks /health until something is new there, then for the models. */
  async watch() {
    if (this.watching) return;
    this.watching = true;
    const before = this.problem ? null : this.states(this.list.map(({ id, qkv }) => [id, qkv.state]));
    for (;;) {
      await new Promise((resume) => setTimeout(resume, SOON));
      try {
        const { models } = await ask("/health");
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

  /** Nobody answers: wait until someone does. */
  lost(problem) {
    this.problem = problem;
    this.changed();
    this.watch();
  }
}
