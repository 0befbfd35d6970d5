// How a round went, as a picture: a line per member over the seconds since the round opened. The
// rows come from timeline_rows.js; the same facts as a table are one press away.

import { element, svg } from "./dom.js";
import { seconds } from "./format.js";
import { markIcon } from "./marks.js";
import { refresh } from "./refresh.js";
import { AWAITED_ROW, IN_ROW, LATE_ROW, noteOf, OTHERS_ROW, tableRows } from "./timeline_rows.js";

const ROW = 23;
const BAR = 12;
const TOP = 26; // the axis' labels
const NAMES_MAX = 130;
const NARROW = 560; // below: short notes beside the marks
const BELOW = 13; // of the row of all others, for its note, where there is no column of notes
const NOTES = 165; // the column of notes at the right
const FAR = 2.5; // a deadline so many times later than all else would squeeze it; left out

const ruler = document.createElement("canvas").getContext("2d");
let pictures = 0;

// `update` takes what timeline_rows.js makes; `toggle` is the button for the panel's head.
export function timeline(root) {
  const picture = element("div", { class: "timeline", "data-timeline": true });
  const table = element("div", { class: "scroll", hidden: true });
  const toggle = element("button", { class: "quiet", type: "button", onclick: flip }, "As a table");
  const hatch = `hatch-${++pictures}`;
  let model = null;
  root.append(picture, table);

  function flip() {
    table.hidden = !table.hidden;
    picture.hidden = !table.hidden;
    toggle.textContent = table.hidden ? "As a table" : "As a picture";
    draw();
  }
  function draw() {
    if (model === null || picture.isConnected === false) return;
    if (!table.hidden) return void refresh(table, tableRows(model), () => tableOf(model));
    const width = Math.floor(picture.clientWidth);
    if (!model.hasTimes) refresh(picture, null, () => element("p", { class: "muted" }, "No times of this round are on record here."));
    else if (width > 0) refresh(picture, [model, width], () => drawing(model, width, hatch));
  }
  const observer = new ResizeObserver(draw);
  observer.observe(picture);
  return {
    toggle,
    update(next) {
      model = next;
      draw();
    },
    unmount: () => observer.disconnect(),
  };
}

function tableOf(model) {
  const [head, ...rows] = tableRows(model);
  return element("table", { class: "data stays", "data-timeline-table": true },
    element("thead", {}, element("tr", {},
      head.map((words, place) => element("th", { scope: "col", class: place ? "number" : null }, words)))),
    element("tbody", {}, rows.map((row) => element("tr", {},
      row.map((text, place) => element("td", { class: place ? "number" : null }, text))))));
}

// --- the picture --------------------------------------------------------------------------------

function drawing(model, width, hatch) {
  const isNarrow = width < NARROW;
  const left = 12 + Math.min(isNarrow ? 84 : NAMES_MAX, Math.max(...model.rows.map((row) => widthOf(row.name, row.isBold))));
  const hasNotes = !isNarrow && model.now === null;
  const right = width - (hasNotes ? NOTES : 22);
  const last = lastSecond(model);
  const { step, end } = scaleFor(last, (right - left) / (isNarrow ? 55 : 80));
  const x = (value) => left + ((right - left) * Math.min(value, end)) / end;
  const isNoteBelow = !hasNotes && model.rows.some((row) => row.kind === OTHERS_ROW);
  const bottom = TOP + model.rows.length * ROW + (isNoteBelow ? BELOW : 0);
  const lines = verticals(model, last, end, isNarrow);
  const feet = placeFeet(lines, x, width, left);
  const height = bottom + 4 + 15 * Math.max(0, ...feet.map((foot) => foot.line + 1));
  const view = { x, left, right, width, isNarrow, hasNotes, bottom, end, hatch,
                 barriers: lines.map((line) => x(line.at)) };
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": model.summary },
    pattern(hatch),
    axis(step, view),
    model.rows.map((row, place) => drawRow(row, TOP + place * ROW + ROW / 2, model, view)),
    lines.map((line) => svg("line", { class: line.kind, x1: x(line.at), x2: x(line.at), y1: TOP - 8, y2: bottom + 2 })),
    feet.map((foot) => text(foot.shown, { class: foot.kind, x: foot.x, y: bottom + 15 + foot.line * 15, "text-anchor": "start" }, foot.words)));
}

function lastSecond(model) {
  const events = [1e-3, model.now ?? 0, model.closedS ?? 0, ...model.phases.map((phase) => phase.end_s ?? 0),
                  ...model.rows.flatMap((row) => [row.cameS ?? 0, ...(row.ticks ?? [])])];
  const last = Math.max(...events);
  return isFar(model.deadlineS, last) ? last : Math.max(last, model.deadlineS ?? 0);
}

const isFar = (deadline, last) => deadline !== null && deadline > last * FAR;

// Steps of 1, 2 or 5 (of minutes: 1, 2, 5, 10, ...), with about as many as fit.
function scaleFor(last, fit) {
  const wish = last / Math.max(2, fit);
  const unit = wish > 30 ? 60 : 1;
  const power = 10 ** Math.floor(Math.log10(wish / unit));
  const step = unit * power * ([1, 2, 5, 10].find((times) => times * power * unit >= wish) ?? 10);
  return { step, end: Math.ceil((last * 1.02) / step) * step };
}

function axis(step, { x, bottom, end }) {
  const marks = [];
  for (let place = 0; place * step <= end * 1.0001; place += 1) {
    const at = x(place * step);
    marks.push(svg("line", { class: "gridline", x1: at, x2: at, y1: TOP - 8, y2: bottom }),
               text(tickText(place * step, step), { class: "axis", x: at, y: 11, "text-anchor": "middle" }));
  }
  return marks;
}

function tickText(value, step) {
  if (step >= 60) return `${+(value / 60).toFixed(1)} min`;
  return `${+value.toFixed(4)} s`;
}

// The lines across all rows: now, and until when those who are awaited are waited for.
function verticals(model, last, end, isNarrow) {
  const lines = [];
  if (model.now !== null) lines.push({ at: model.now, kind: "now", words: `now, ${seconds(model.now)}` });
  if (model.deadlineS === null) return lines;
  if (isFar(model.deadlineS, last)) lines.push({ at: end * 2, kind: "deadline-far", words: model.deadlineText }); // words alone
  else lines.push({ at: model.deadlineS, kind: "deadline", words: isNarrow ? model.deadlineShort : model.deadlineText });
  return lines;
}

// Below the picture, centred on their lines; one that would overlap goes into the next line.
function placeFeet(lines, x, width, left) {
  const ends = [];
  return lines.map(({ at, kind, words }) => {
    const shown = fitting(words, width - left, kind === "now");
    const wide = widthOf(shown, kind === "now");
    const from = Math.max(left - 20, Math.min(x(at) - wide / 2, width - wide - 2));
    let line = ends.findIndex((end) => end + 12 <= from);
    if (line < 0) line = ends.length;
    ends[line] = from + wide;
    return { words, shown, kind: `foot ${kind}`, x: from, line };
  });
}

function drawRow(row, middle, model, view) {
  const { left } = view;
  const parts = [text(fitting(row.name, left - 12, row.isBold),
                      { class: row.isBold ? "member own" : "member", x: 0, y: middle + 4 }, row.name)];
  if (row.phases) parts.push(...drawPhases(row, middle, model, view));
  else parts.push(...drawArrival(row, middle, model, view));
  return svg("g", { "data-row": row.kind, "data-member": row.member }, parts);
}

function drawPhases(row, middle, model, view) {
  const parts = row.phases.map((phase) => {
    const from = view.x(phase.start_s);
    const wide = Math.max(1, view.x(phase.end_s ?? model.now ?? phase.start_s) - from - 0.7);
    const label = phase.words.find((words) => widthOf(words) + 8 <= wide);
    const box = { x: from, y: middle - BAR / 2, width: wide, height: BAR, rx: 1.5 };
    return svg("g", { "data-phase": phase.phase },
      svg("title", {}, phase.words[0]),
      phase.phase === "close"
        ? svg("rect", { ...box, class: "bar bar-close", fill: `url(#${view.hatch})` })
        : svg("rect", { ...box, class: `bar bar-${phase.phase}` }),
      label && phase.phase !== "close"
        ? text(label, { class: phase.phase === "prepare" ? "on-hollow" : "on-bar", x: from + wide / 2, y: middle + 4, "text-anchor": "middle" })
        : null);
  });
  if (view.hasNotes && row.note) parts.push(noteAt(row, middle, view));
  return parts;
}

function drawArrival(row, middle, model, view) {
  const { x, left } = view;
  const note = () => (view.hasNotes ? [noteAt(row, middle, view)] : noteBeside(row, middle, view));
  if (row.kind === OTHERS_ROW)
    return [svg("line", { class: "way", x1: left, x2: x(Math.max(...row.ticks)), y1: middle, y2: middle }),
            ...row.ticks.map((at) => svg("line", { class: "tick", x1: x(at), x2: x(at), y1: middle - 5, y2: middle + 5 })),
            view.hasNotes ? noteAt(row, middle, view) : noteBelow(row, middle, view)];
  if (row.endS === null) return note();
  const end = x(row.endS);
  const parts = [svg("line", { class: row.kind === IN_ROW ? "way" : "way awaited", x1: left, x2: end, y1: middle, y2: middle })];
  if (row.waitedS && !view.isNarrow)
    parts.push(svg("rect", { class: "waited", x: x(Math.max(0, row.endS - row.waitedS)), y: middle - BAR / 2,
                             width: Math.max(1, end - x(Math.max(0, row.endS - row.waitedS))), height: BAR, rx: 1.5 }));
  if (row.kind === IN_ROW) parts.push(svg("rect", { class: "arrived", x: end - 4, y: middle - 4, width: 8, height: 8, rx: 1 }));
  else parts.push(mark(row.mark, end, middle, row.kind === AWAITED_ROW ? 11 : 9));
  return [...parts, ...note()];
}

function mark(letter, x, y, size) {
  const icon = markIcon(letter, size);
  icon.setAttribute("x", x - size / 2);
  icon.setAttribute("y", y - size / 2);
  return svg("g", {}, svg("rect", { class: "ground", x: x - size / 2, y: y - size / 2, width: size, height: size }), icon);
}

const noteClass = (row) => (row.isWaitedFor ? "note waited-for" : row.phases ? "note own" : "note");

const noteAt = (row, middle, view) =>
  text(fitting(noteOf(row), NOTES - 14), { class: noteClass(row), x: view.right + 14, y: middle + 4 }, noteOf(row));

// That row is the last one, and its ticks may be anywhere. At the left, or right of a line that would cross it.
function noteBelow(row, middle, { left, width, barriers }) {
  const words = fitting(noteOf(row), width - left);
  const isFree = (from, to) => to <= width && barriers.every((barrier) => barrier < from - 2 || barrier > to + 2);
  const x = [left, ...barriers.map((barrier) => barrier + 6)].find((from) => isFree(from, from + widthOf(words))) ?? left;
  return text(words, { class: `${noteClass(row)} halo`, x, y: middle + 5 + BELOW }, noteOf(row));
}

// Right of the mark if nothing stands there, otherwise left of it, over the line.
function noteBeside(row, middle, view) {
  const words = view.isNarrow ? row.short : noteOf(row);
  const wide = widthOf(words);
  const end = row.endS === null ? view.left - 8 : view.x(row.endS);
  const from = end + 10;
  const isFree = from + wide <= view.width &&
    view.barriers.every((barrier) => barrier < from - 2 || barrier > from + wide + 2 || barrier > view.right);
  const fitsLeft = end - 10 - wide > view.left;
  if ((isFree && !(view.isNarrow && view.barriers.length < 2)) || !fitsLeft || row.kind !== IN_ROW)
    return [text(words, { class: `${noteClass(row)} halo`, x: Math.min(from, view.width - wide), y: middle + 4 })];
  return [text(words, { class: `${noteClass(row)} halo`, x: end - 8, y: middle + 4, "text-anchor": "end" })];
}

const pattern = (id) =>
  svg("defs", {}, svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: "hatch-ground", width: 6, height: 6 }),
    svg("line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 })));

function text(words, attributes, whole = words) {
  return svg("text", attributes, words, whole === words ? null : svg("title", {}, whole));
}

function widthOf(words, isBold = false) {
  ruler.font = `${isBold ? "600 " : ""}11px system-ui, sans-serif`;
  return ruler.measureText(words).width;
}

function fitting(words, wide, isBold = false) {
  if (widthOf(words, isBold) <= wide) return words;
  const letters = [...words];
  while (letters.length > 1 && widthOf(`${letters.join("")}…`, isBold) > wide) letters.pop();
  return `${letters.join("")}…`;
}

// What the marks mean; only those phases that are in the picture.
export function timelineLegend(model) {
  const phases = ["prepare", "train", "certify", "close", "fetch", "aggregate"];
  const words = { close: "close: waiting for others" };
  const has = new Set(model.phases.map((phase) => phase.phase));
  const item = (icon, label) => element("li", {}, icon, label);
  const small = (child, wide = 13) => svg("svg", { width: wide, height: 10, viewBox: `0 0 ${wide} 10`, "aria-hidden": "true" }, child);
  return element("ul", { class: "legend" },
    phases.filter((phase) => phase !== "prepare" || has.has(phase)).map((phase) => item(phaseIcon(phase), words[phase] ?? phase)),
    item(small(svg("rect", { class: "arrived", x: 0, y: 1, width: 8, height: 8, rx: 1 }), 8), "update in"),
    model.rows.some((row) => row.kind === LATE_ROW) ? item(markIcon("l", 10), "late: closed without it") : null);
}

// A small bar in the phase's colour; hatched while waiting. Also used in the table of nodes.
export function phaseIcon(phase) {
  const box = { x: 0.5, y: 1, width: 12, height: 8, rx: 1.5 };
  return svg("svg", { width: 13, height: 10, viewBox: "0 0 13 10", class: "phase-icon", "aria-hidden": "true" },
    svg("rect", { ...box, class: `bar bar-${phase}` }),
    phase === "close" ? svg("path", { class: "hatch", d: "M1 7 6.5 1.5M4 8.6 11 1.6M8 8.6 12.2 4.4" }) : null);
}
