// @ts-check
// What surrounds a page. A stand-alone page has the address, the keys and the theme to itself; a page that is part of a
// larger one gets an object of the same shape.

const dark = matchMedia("(prefers-color-scheme: dark)");

export const standalone = {
  tag: /** @type {"main" | "div"} */ ("main"), // the element around the views; a larger page has a <main> of its own
  heading: true, // whether the model and the text are shown above
  grows: false, // whether the text becomes longer while it is shown: then its end stays in view
  keys: window, // the target of key events

  /** The state as the end of an address. */
  read: () => location.hash,

  write(address) {
    try {
      history.replaceState(null, "", address);
    } catch {
      // a page inside a notebook has no address of its own
    }
  },

  /** Calls `reread` when the address changes, and `redraw` when the theme does. */
  watch(reread, redraw) {
    addEventListener("hashchange", reread);
    dark.addEventListener("change", redraw);
  },

  theme(state) {
    const theme = state.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    return theme;
  },

  /** Switches to the other theme; a larger page switches its own. */
  switchTheme: (page) => page.set({ theme: page.colours.theme === "dark" ? "light" : "dark" }),

  /** Whether a head is switched off: its cell among all heads is crossed out. */
  off: () => false,
};
