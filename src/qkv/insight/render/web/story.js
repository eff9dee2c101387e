// @ts-check
// A story: states of the page with captions, walked through by Back and Next, and made by adding the current state.

import { element } from "qkv/elements.js";
import { changesTo, checkStory, stateAt } from "qkv/story_file.js";
/** @import { StoryData } from "qkv/story_file.js" */

export class StoryBar {
  constructor(page) {
    this.page = page;
    /** @type {StoryData} */
    this.story = page.store.data.start?.story ?? { title: "", steps: [] };
    this.title = element("span", { class: "story-title" });
    this.caption = element("p", { class: "story-caption", dir: "auto", "aria-live": "polite" });
    const button = (name, by) => element("button", { type: "button", onclick: () => this.move(by) }, name);
    this.back = button("‹ Back", -1);
    this.next = button("Next ›", 1);
    this.pips = element("div", { class: "story-pips", role: "group", "aria-label": "Steps of the story" });
    this.element = element(
      "section",
      { class: "story", "aria-label": "Story", hidden: true },
      this.caption,
      element("div", { class: "story-steps" }, this.title, this.back, this.pips, this.next),
    );
  }

  get steps() {
    return this.story.steps;
  }

  /** The step that is told, or null: a number of an address may be larger than the story. */
  get told() {
    const { told } = this.page.state;
    return told === null || !this.steps.length ? null : Math.min(told, this.steps.length - 1);
  }

  /** Shows the state of a step; the theme stays unless the story names one. */
  go(index) {
    if (index < 0 || index >= this.steps.length) return;
    const { theme, present } = this.page.state;
    this.page.set({ ...stateAt(this.steps, index, { ...this.page.first, theme }), present, told: index });
  }

  move(by) {
    this.go(this.told === null ? (by > 0 ? 0 : this.steps.length - 1) : this.told + by);
  }

  show() {
    const { told, steps } = this;
    this.element.hidden = steps.length === 0;
    if (this.element.hidden) return;
    this.title.textContent = this.story.title;
    const text = told === null ? "" : steps[told].caption;
    if (this.caption.textContent !== text) this.caption.textContent = text;
    this.caption.hidden = told === null;
    this.back.disabled = told === null || told === 0;
    this.next.disabled = told === steps.length - 1;
    if (this.pips.childElementCount !== steps.length) this.build();
    [...this.pips.children].forEach((pip, index) => {
      if (index === told) pip.setAttribute("aria-current", "step");
      else pip.removeAttribute("aria-current");
      const name = `Step ${index + 1} of ${steps.length}: ${steps[index].caption}`;
      pip.setAttribute("aria-label", name);
      /** @type {HTMLElement} */ (pip).title = name;
    });
  }

  build() {
    const pip = (_, index) => element("button", { type: "button", class: "story-pip", onclick: () => this.go(index) });
    this.pips.replaceChildren(...this.steps.map(pip));
  }

  // Making a story

  /** Adds the state of the page after the step that is told, or at the end. */
  add(caption) {
    this.tellWhat();
    this.put((this.told ?? this.steps.length - 1) + 1, 0, [caption]);
  }

  /** Gives the step that is told this caption, and the state of the page. */
  replace(caption) {
    if (this.told !== null) this.put(this.told, 1, [caption]);
  }

  remove() {
    if (this.told !== null) this.put(this.told, 1, []);
  }

  /** Replaces steps; every state stays what it was, so the steps after them may say more or less. */
  put(at, removed, captions) {
    const { page, steps } = this;
    const states = steps.map((_, index) => stateAt(steps, index, page.first));
    const told = steps.map(({ caption }) => caption);
    states.splice(at, removed, ...captions.map(() => page.state));
    told.splice(at, removed, ...captions);
    this.story.steps = states.map((state, index) => ({
      caption: told[index],
      ...changesTo(state, states[index - 1] ?? {}),
    }));
    this.pips.replaceChildren();
    const last = this.steps.length - 1;
    page.set({ told: last < 0 ? null : Math.min(at, last) });
    this.show();
  }

  /** A new story says which model and text it is about. */
  tellWhat() {
    const { model, heading } = this.page.store.data;
    if (this.steps.length) return;
    Object.assign(this.story, { title: this.story.title || heading[0].slice(0, 60), model, text: heading[0] });
  }

  /** Opens a story that was read from a file; an error says what this page does not have. */
  open(story) {
    checkStory(story, this.page.store.data, this.page.first);
    this.story = story;
    this.pips.replaceChildren();
    this.go(0);
    this.show();
    const { text } = story;
    const shown = this.page.store.data.heading;
    return text && !shown.includes(text.slice(0, shown[0].length)) ? `This story is about another text: ${text}` : "";
  }
}
