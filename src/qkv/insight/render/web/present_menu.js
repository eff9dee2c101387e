// @ts-check
// The menu for lectures: presenter mode, pictures of the view, and the story.

import { element } from "qkv/elements.js";
import { fileName, save, savePicture } from "qkv/picture_file.js";
import { readStory, writeStory } from "qkv/story_file.js";

export class PresentMenu {
  constructor(page) {
    this.page = page;
    const button = (name, act, more = {}) => element("button", { type: "button", onclick: act, ...more }, name);
    this.opener = button("⋯", () => this.toggle(), {
      class: "tool",
      "aria-label": "Present and save",
      title: "Present and save",
      "aria-expanded": "false",
    });
    this.caption = element("textarea", { id: "story-caption", rows: 2, dir: "auto" });
    this.add = button("Add this state to the story", () => page.story.add(this.caption.value.trim()));
    this.replace = button("Replace this step", () => page.story.replace(this.caption.value.trim()));
    this.remove = button("Remove this step", () => page.story.remove());
    this.save = button("Save the story", () => this.saveStory());
    this.file = element("input", { type: "file", id: "story-file", accept: ".toml", onchange: () => this.read() });
    this.message = element("p", { class: "note", role: "status" });
    const present = () => {
      this.element.hidePopover();
      page.presenter.toggle();
    };
    this.element = element(
      "div",
      { class: "present-menu", popover: "auto", role: "dialog", "aria-label": "Present and save" },
      button("Present (f)", present, { autofocus: true }),
      element(
        "div",
        { class: "row-of", role: "group", "aria-label": "Save this view" },
        button("Save as SVG", () => this.picture("svg")),
        button("Save as PNG", () => this.picture("png")),
      ),
      element("h2", {}, "Story"),
      element("label", { for: "story-caption" }, "Caption"),
      this.caption,
      this.add,
      element("div", { class: "row-of" }, this.replace, this.remove),
      element("div", { class: "row-of" }, this.save),
      element("label", { for: "story-file" }, "Open a story"),
      this.file,
      this.message,
    );
    this.element.addEventListener("toggle", (event) => {
      const open = /** @type {any} */ (event).newState === "open";
      this.opener.setAttribute("aria-expanded", String(open));
    });
  }

  get open() {
    return this.element.matches(":popover-open");
  }

  toggle() {
    this.element.togglePopover();
    const { bottom, right } = this.opener.getBoundingClientRect();
    const { style } = this.element;
    style.top = `${Math.min(bottom + 4, Math.max(8, innerHeight - this.element.offsetHeight - 8))}px`;
    style.left = `${Math.max(8, right - this.element.offsetWidth)}px`;
    this.message.textContent = "";
    this.show();
  }

  /** What can be done depends on the story. */
  show() {
    const { told, steps } = this.page.story;
    this.replace.disabled = this.remove.disabled = told === null;
    this.save.disabled = steps.length === 0;
    if (this.shown === told) return;
    this.shown = told;
    this.caption.value = told === null ? "" : steps[told].caption;
  }

  async picture(kind) {
    const { page } = this;
    this.message.textContent = "";
    try {
      this.message.textContent = `Saved ${await savePicture(page, kind)}`;
    } catch (error) {
      this.message.textContent = `The picture could not be saved: ${error.message}`;
    }
  }

  saveStory() {
    const { story } = this.page.story;
    const name = `${fileName(story.title) || "story"}.toml`;
    save(new Blob([writeStory(story)], { type: "application/toml" }), name);
    this.message.textContent = `Saved ${name}`;
  }

  async read() {
    const [file] = this.file.files ?? [];
    if (!file) return;
    try {
      const story = readStory(await file.text());
      story.title ||= file.name.replace(/\.toml$/, "");
      this.message.textContent = this.page.story.open(story);
    } catch (error) {
      this.message.textContent = error.message;
    }
    this.file.value = ""; // the same file can be opened again
  }
}
