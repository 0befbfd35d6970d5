// The panel "Weights and scores" of a round: a table with bars for weights and a log scale for scores.

import { element, name, svg } from "./dom.js";
import { exactSeconds, fixed, NONE } from "./format.js";
import { markIcon } from "./marks.js";
import { refresh } from "./refresh.js";
import { VERDICT } from "./store.js";

const WIDE = 200; // of the scale of scores
const EDGE = 8;
const SMALLEST = 1e-30; // what is smaller or larger stands at the end of the scale
const LARGEST = 1e30;
const FIRST_ROWS = 40; // of a federation with more members; the rest on request

export function scoresOf(view) {
  const scale = scoreScale(view.members);
  const weightMax = Math.max(0, ...view.members.map((share) => share.weight ?? 0));
  const body = element("tbody");
  const members = ordered(view.members);
  const show = (shares) => refresh(body, shares.length, () => shares.map((share) => rowOf(share, scale, weightMax, view.seen_from)));
  show(members.slice(0, members.length > FIRST_ROWS + 10 ? FIRST_ROWS : members.length));
  const all = body.children.length < members.length
    ? element("button", { class: "quiet", type: "button", onclick: () => { show(members); all.remove(); } }, `All ${members.length} members`) : null;
  const hint = scale === null ? "this rule gives no scores"
    : "score: how far an update lies from the others; the grey band is the range of those kept, log scale";
  return element("section", { class: "panel", "aria-labelledby": "scores" },
    element("div", { class: "panel-head" }, element("h2", { id: "scores" }, "Weights and scores"), element("span", { class: "hint" }, hint)),
    element("div", { class: "scroll" }, element("table", { class: "data scores", "data-scores": true },
      element("thead", {}, element("tr", {},
        column("member"), column("verdict"), column("weight", "number"), element("td"), column("score", "number"),
        element("td", { class: "scale-head" }, scale && axisOf(scale)), element("td"), column("came at", "number"))),
      body)),
    all);
}

const column = (words, kind = null) => element("th", { scope: "col", class: kind }, words);

// In the federation's order; of many members those that were not kept come first.
const ordered = (members) => (members.length <= FIRST_ROWS ? members
  : [...members].sort((a, b) => (a.verdict === VERDICT.KEPT) - (b.verdict === VERDICT.KEPT)));

function rowOf(share, scale, weightMax, seenFrom) {
  const member = name(share.member);
  const verdict = share.words || NONE;
  return element("tr", { "data-member": share.member, "data-verdict": share.verdict },
    element("td", { class: "member" }, markIcon(share.verdict, 13), share.member === seenFrom ? element("strong", {}, member) : member),
    element("td", { class: "verdict" }, element("span", { class: "with-icon", title: share.reason || null }, markIcon(share.verdict, 14), element("span", {}, name(verdict)))),
    element("td", { class: "number weight", "data-label": "weight" }, fixed(share.weight, 3)),
    element("td", { class: "weight-bar" }, share.weight === null ? null : weightBar(share.weight, weightMax)),
    element("td", { class: "number score", "data-label": "score" }, scoreText(share.score)),
    element("td", { class: "scale" }, share.score === null || scale === null ? null : scoreLine(share, scale)),
    element("td", { class: "times muted" }, share.times_worst_kept === null ? null : `${fixed(share.times_worst_kept, share.times_worst_kept < 100 ? 1 : 0)} × the worst kept`),
    element("td", { class: "number came", "data-label": "came at" }, share.came_s === null ? share.came || NONE : exactSeconds(share.came_s)));
}

function scoreText(score) {
  const size = Math.abs(score ?? 0);
  if (size >= 1e9 || (size > 0 && size < 1e-4)) return score.toExponential(2).replaceAll("-", "−");
  return fixed(score, size < 0.1 ? 4 : 2);
}

function weightBar(weight, most) {
  const wide = most > 0 ? 60 * (weight / most) : 0;
  return svg("svg", { width: 60, height: 9, viewBox: "0 0 60 9", "aria-hidden": "true" },
    svg("rect", { class: "weight-ground", width: 60, height: 9, rx: 1.5 }),
    wide > 0 ? svg("rect", { class: "weight-fill", width: wide, height: 9, rx: 1.5 }) : null);
}

// From a power of ten below the smallest score to 1, 2 or 5 times one above the largest; null: no scores.
function scoreScale(members) {
  const scores = members.map((share) => share.score).filter((score) => score !== null && score > 0)
    .map((score) => Math.min(LARGEST, Math.max(SMALLEST, score)));
  if (!scores.length) return null;
  const low = 10 ** Math.floor(Math.log10(Math.min(...scores)));
  const most = Math.max(...scores, low * 10);
  const power = 10 ** Math.floor(Math.log10(most));
  const high = [1, 2, 5, 10].map((times) => times * power).find((value) => value >= most * 0.9999);
  const kept = members.filter((share) => share.verdict === VERDICT.KEPT && share.score !== null).map((share) => share.score);
  const x = (score) => {
    const share = score <= 0 ? 0 : (Math.log10(score) - Math.log10(low)) / (Math.log10(high) - Math.log10(low));
    return EDGE + (WIDE - 2 * EDGE) * Math.max(0, Math.min(1, share));
  };
  return { low, high, x, kept: kept.length ? [Math.min(...kept), Math.max(...kept)] : null };
}

function axisOf({ low, high, x }) {
  const ticks = [];
  const decades = Math.round(Math.log10(high / low));
  const every = Math.max(1, Math.ceil(decades / 4));
  for (let power = 0, tick = low; tick < high * 0.9; power += 1, tick = low * 10 ** power)
    if (power % every === 0 && x(high) - x(tick) > 30) ticks.push(tick);
  ticks.push(high);
  return svg("svg", { width: WIDE, height: 14, viewBox: `0 0 ${WIDE} 14`, "aria-hidden": "true" }, ticks.map((tick, place) =>
    svg("text", { class: "axis", x: place === 0 ? 0 : place === ticks.length - 1 ? WIDE : x(tick), y: 11,
                  "text-anchor": place === 0 ? "start" : place === ticks.length - 1 ? "end" : "middle" }, tickText(tick))));
}

const tickText = (tick) => (tick >= 1e5 || tick < 1e-3 ? tick.toExponential(0) : String(+tick.toPrecision(3)));

function scoreLine(share, { x, kept }) {
  const icon = markIcon(share.verdict, 9);
  icon.setAttribute("x", x(share.score) - 4.5);
  icon.setAttribute("y", 3.5);
  return svg("svg", { width: WIDE, height: 16, viewBox: `0 0 ${WIDE} 16`, "aria-hidden": "true" },
    svg("line", { class: "scale-line", x1: 0, x2: WIDE, y1: 8, y2: 8 }),
    kept ? svg("rect", { class: "band", x: x(kept[0]) - 6, y: 1.5, width: x(kept[1]) - x(kept[0]) + 12, height: 13, rx: 3 }) : null,
    icon);
}
