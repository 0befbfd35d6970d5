// The column beside the strip: each member's link and round trip, or, of a whole federation, which
// nodes are linked with which.

import { element, svg } from "./dom.js";
import { milliseconds, seconds } from "./format.js";

const MATRIX_NODES_MAX = 10; // more do not fit: a count then
const DOT = 16; // px per node

const isMatrix = (overview) => overview.whole && overview.nodes.length <= MATRIX_NODES_MAX;

// Nodes that do not run have no links to show.
const isRunning = (overview) => overview.nodes.some((node) => node.runs);

export function linkTitle(cell, overview) {
  if (!isRunning(overview)) return keep(cell, "", () => []);
  if (!overview.whole) return keep(cell, "link", () => ["link, round trip"]);
  if (!isMatrix(overview)) return keep(cell, "linked", () => ["linked"]);
  const nodes = overview.nodes.map((node) => node.name);
  return keep(cell, nodes.join("\n"), () => [
    element("span", { class: "visually-hidden" }, "linked with "),
    ...nodes.map((node, place) =>
      element("span", { class: "strip-node", title: node }, shortName(node, place))),
    element("span", { class: "strip-linked", "aria-hidden": "true" }, "linked"),
  ]);
}

export function linkCell(cell, view, overview) {
  const isLeft = !overview.whole && view?.link === "left";
  if (view === undefined || isLeft || !isRunning(overview)) return keep(cell, "", () => []);
  if (isMatrix(overview)) return matrixRow(cell, view, overview);
  if (overview.whole) {
    const states = Object.values(view.linked);
    const up = states.filter(Boolean).length;
    return keep(cell, `${up} of ${states.length}`, () => [`${up} of ${states.length}`]);
  }
  if (view.is_this_node) return keep(cell, "this", () => [icon("none"), "this node"]);
  if (view.connected) {
    const trip = view.round_trip_ms === null ? "connected" : milliseconds(view.round_trip_ms);
    return keep(cell, trip, () => [icon("up"), trip]);
  }
  if (view.link !== "away") return keep(cell, view.link, () => [icon("unknown"), view.link]);
  const away = view.away_s === null ? "away" : `away for ${seconds(view.away_s)}`;
  return keep(cell, away, () => [icon("down"), element("span", { class: "down" }, away)]);
}

function matrixRow(cell, view, overview) {
  const stateOf = (node) =>
    node === view.name ? "self" : !(node in view.linked) ? "unknown" : view.linked[node] ? "up" : "off";
  const states = overview.nodes.map((node) => stateOf(node.name));
  const others = states.filter((state) => state !== "self");
  const up = others.filter((state) => state === "up");
  return keep(cell, states.join(), () => [
    element("span", { class: "visually-hidden" }, `linked with ${up.length} of ${others.length}`),
    ...states.map((state) => icon(state, DOT)),
  ]);
}

// "node-3" -> "3": a column is 16 px wide.
const shortName = (name, place) => /([0-9]{1,2})$/.exec(name)?.[1] ?? String(place);

// Shapes, not colour alone: a dot, a ring, a cross, a stroke, a small dot.
const down = { fill: "none", stroke: "var(--left-out)", "stroke-linecap": "round" };
const SHAPES = {
  up: () => svg("circle", { cx: 6, cy: 6, r: 3.4, fill: "var(--good)" }),
  off: () => svg("circle", { cx: 6, cy: 6, r: 2.8, ...down, "stroke-width": 1.4 }),
  down: () => svg("path", { d: "m3 3 6 6m0-6-6 6", ...down, "stroke-width": 2 }),
  self: () => svg("path", { d: "m4 8 4-4", stroke: "var(--not-a-member)" }),
  unknown: () => svg("circle", { cx: 6, cy: 6, r: 1.4, fill: "var(--not-a-member)" }),
  none: () => null,
};

export function icon(kind, width = 12) {
  const viewBox = `${6 - width / 2} 0 ${width} 12`;
  return svg("svg", { width, height: 12, viewBox, "aria-hidden": "true", "data-link": kind }, SHAPES[kind]());
}

// Rebuilds a cell only if what it shows differs.
function keep(cell, key, make) {
  if (cell.dataset.shown === key) return;
  cell.dataset.shown = key;
  cell.replaceChildren(...make());
}
