// The small shape of a link's state: connected, away, this node, not connected yet, left.

import { svg } from "./dom.js";

const SHAPES = {
  connected: () => svg("circle", { class: "link-up", cx: 5, cy: 5, r: 4 }),
  away: () => svg("path", { class: "link-away", d: "M1.8 1.8 8.2 8.2M8.2 1.8 1.8 8.2" }),
  "this node": () => svg("rect", { class: "link-own", x: 1.2, y: 1.2, width: 7.6, height: 7.6, rx: 1 }),
  left: () => svg("circle", { class: "link-gone", cx: 5, cy: 5, r: 1.4 }),
};

// Decoration: the words must stand beside it.
export function linkIcon(state, size = 10) {
  const shape = SHAPES[state] ?? (() => svg("circle", { class: "link-open", cx: 5, cy: 5, r: 3.4 }));
  return svg("svg", { width: size, height: size, viewBox: "0 0 10 10", class: "link-icon", "aria-hidden": "true" }, shape());
}
