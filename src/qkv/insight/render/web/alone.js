// What a page wants to know of the place where it stands. Alone, it has the address, the keys and the theme to itself;
// a page that is part of a larger one is given an object of the same shape instead.

const dark = matchMedia("(prefers-color-scheme: dark)");

export const alone = {
  tag: "main", // what the views stand in; a larger page has a <main> of its own
  heading: true, // the model and the text above
  grows: false, // whether the text becomes longer while it is looked at: then its end is what one wants to see
  keys: window, // whose keys are heard

  /** What is shown, as the end of an address. */
  read: () => location.hash,

  write(address) {
    try {
      history.replaceState(null, "", address);
    } catch {
      // a page inside a notebook has no address of its own
    }
  },

  /** `reread` when the address is another, `redraw` when the theme is. */
  watch(reread, redraw) {
    addEventListener("hashchange", reread);
    dark.addEventListener("change", redraw);
  },

  theme(state) {
    const theme = state.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    return theme;
  },

  /** The other theme; a larger page turns its own. */
  turn: (page) => page.set({ theme: page.colours.theme === "dark" ? "light" : "dark" }),

  /** Whether a head is switched off: its cell among all heads is crossed out. */
  off: () => false,
};
