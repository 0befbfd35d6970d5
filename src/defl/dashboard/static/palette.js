// The colours of style.css for what is drawn on a canvas, in the scheme that is on now.

const TOKENS = {
  page: "--page", panel: "--panel", inset: "--inset", line: "--line", text: "--text",
  muted: "--muted", link: "--link", kept: "--kept", leftOut: "--left-out", late: "--late",
  noUpdate: "--no-update", notAMember: "--not-a-member", good: "--good",
  attention: "--attention", danger: "--danger", train: "--train", certify: "--certify",
  fetch: "--fetch", aggregate: "--aggregate", keptDense: "--kept-dense", onMark: "--on-mark",
  half: "--half", bar: "--bar", column: "--column", rule: "--rule", sans: "--sans",
};
const dark = matchMedia("(prefers-color-scheme: dark)");
let colours = null;

export function palette() {
  if (colours === null) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(
      Object.entries(TOKENS).map(([key, token]) => [key, style.getPropertyValue(token).trim()]),
    );
  }
  return colours;
}
dark.addEventListener("change", () => (colours = null));

// Calls `redraw` when light turns into dark or back; returns a function that ends this.
export function onPaletteChange(redraw) {
  dark.addEventListener("change", redraw);
  return () => dark.removeEventListener("change", redraw);
}
