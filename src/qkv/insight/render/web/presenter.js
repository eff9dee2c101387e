// @ts-check
// Presenter mode: large type and nothing but the view. Arrows walk the story, or the steps of the view; Esc leaves.

const FORWARD = ["ArrowRight", "PageDown", " "];
const BACK = ["ArrowLeft", "PageUp"];

/** @type {Presenter | null} */
let filling = null; // the one whose mode fills the screen

document.addEventListener("fullscreenchange", () => {
  if (document.fullscreenElement || !filling) return;
  const { page } = filling;
  filling = null;
  page.set({ present: false }); // Esc left both
});

export class Presenter {
  constructor(page) {
    this.page = page;
  }

  async toggle() {
    const present = !this.page.state.present;
    if (!present) return this.leave();
    this.page.set({ present });
    try {
      await document.documentElement.requestFullscreen();
      filling = this;
    } catch {
      // a page inside a notebook may not: large type is left
    }
  }

  leave() {
    this.page.set({ present: false });
    if (filling !== this) return;
    filling = null;
    if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
  }

  /** Sets the size of the page before its view is drawn. */
  show({ present }) {
    const { root, main } = this.page;
    if (root.classList.contains("presenting") === present) return;
    root.classList.toggle("presenting", present);
    document.documentElement.classList.toggle("presented", present);
    if (present) this.before = scrollY;
    scrollTo(0, present ? 0 : (this.before ?? 0)); // a larger page may be scrolled
    if (present && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
  }

  /** Keys of this mode; true if one was used. */
  key(event) {
    const { page } = this;
    if (event.key === "f" && !event.shiftKey) this.toggle();
    else if (!page.state.present || event.shiftKey) return false;
    else if (event.key === "Escape") this.leave();
    else return this.step(event);
    return true;
  }

  step(event) {
    const { page } = this;
    const by = FORWARD.includes(event.key) ? 1 : BACK.includes(event.key) ? -1 : 0;
    const pressing = event.key === " " && event.target.closest("button, summary, a");
    if (by === 0 || pressing) return false;
    if (page.story.steps.length) page.story.move(by);
    else if (event.key.startsWith("Arrow")) return false; // the view's own steps
    else {
      const key = by > 0 ? "ArrowRight" : "ArrowLeft";
      page.act({ key, shiftKey: false, target: event.target, preventDefault() {} });
    }
    return true;
  }
}
