// All rounds in one small picture: how many members were not kept, stacked by verdict, and the
// window of rounds that the rows below show. The window is moved by dragging it, widened by its
// handles; a press elsewhere brings it there.

import { prepare, ticks, writeAxis } from "./canvas.js";
import { element, name } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 64; // of the bars and what stands above them
const TOP = 8;
const HANDLE = 6; // half the width in which a handle is grabbed
const BODY_MIN = 10; // pixels: a window of few rounds among many must still be seen and held

// `choose(first, last)`: the window that the viewer asks for; it comes back with `draw`.
export function histogram({ choose }) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const frame = element("div", { class: "window" }, element("i"), element("i"));
  const note = element("span", { class: "histogram-note" });
  const chart = element("div", { class: "histogram" }, canvas, note, frame);
  const scale = element("div", { class: "histogram-scale" }, element("span"), element("span"));
  const label = element("div", { class: "dense-label histogram-label" },
    element("div"), element("div", { class: "muted" }, "not kept"), scale);
  const axis = element("div", { class: "axis histogram-axis", "aria-hidden": "true" });
  const side = element("div", { class: "dense-side" }, element("div"),
    element("div", { class: "muted" }, "drag, or Shift + ← →"));
  let tally = null;
  let shown = { first: 1, last: 1 };
  let held = null; // while dragging: what, and where it began

  const width = () => chart.clientWidth;
  const left = (number) => ((number - tally.first) / tally.length) * width();
  const numberAt = (x) => tally.first + Math.floor((x / width()) * tally.length);

  function place() {
    const [from, to] = [left(shown.first), left(shown.last + 1)];
    const extra = Math.max(0, BODY_MIN - (to - from)) / 2;
    frame.style.left = `${Math.max(0, Math.min(from - extra, width() - BODY_MIN))}px`;
    frame.style.width = `${Math.max(BODY_MIN, to - from)}px`;
    side.firstChild.textContent = `rounds ${count(shown.first)} to ${count(shown.last)}`;
  }

  chart.addEventListener("pointerdown", (event) => {
    if (!tally?.length || event.button !== 0) return;
    event.preventDefault();
    chart.setPointerCapture(event.pointerId);
    const x = event.clientX - chart.getBoundingClientRect().left;
    const [from, to] = [frame.offsetLeft, frame.offsetLeft + frame.offsetWidth];
    let what = "body";
    if (Math.abs(x - to) <= HANDLE) what = "last";
    else if (Math.abs(x - from) <= HANDLE) what = "first";
    else if (x < from || x > to) {
      const span = shown.last - shown.first;
      const first = numberAt(x) - (span >> 1);
      choose(first, first + span, "body");
    }
    held = { what, x, first: shown.first, last: shown.last };
  });
  chart.addEventListener("pointermove", (event) => {
    if (held === null) return;
    const x = event.clientX - chart.getBoundingClientRect().left;
    const by = Math.round(((x - held.x) / width()) * tally.length);
    choose(held.first + (held.what === "last" ? 0 : by),
           held.last + (held.what === "first" ? 0 : by), held.what);
  });
  for (const end of ["pointerup", "pointercancel"])
    chart.addEventListener(end, () => (held = null));

  return {
    cells: [label, chart, side, element("div"), axis, element("div")], // a row of bars, one of numbers
    moved(window) {
      shown = window;
      if (tally?.length) place();
    },
    draw(counted, window, marks, colours) {
      tally = counted;
      shown = window;
      if (!tally.length || !width()) return;
      const bars = worstRounds(tally, Math.min(tally.length, Math.floor(width())));
      const top = niceMaximum(bars.most);
      drawBars(canvas, bars, width(), top, colours);
      label.firstChild.textContent = `all ${count(tally.length)}`;
      scale.firstChild.textContent = top;
      scale.lastChild.textContent = "0";
      writeAxis(axis, ticks(tally.first, tally.last, width(), 60)
        .map((number) => [left(number) + width() / tally.length / 2, count(number)]));
      writeNote(note, worstMark(tally, marks), left, width());
      place();
    },
  };
}

// Of each bar's rounds the one with most members not kept: an average would hide it.
function worstRounds(tally, count) {
  const worst = new Uint32Array(count);
  let most = 0;
  for (let bar = 0; bar < count; bar++) {
    const to = Math.floor(((bar + 1) * tally.length) / count);
    let found = -1;
    for (let i = Math.floor((bar * tally.length) / count); i < to; i++) {
      const sum = tally.leftOut[i] + tally.late[i] + tally.noUpdate[i];
      if (sum <= found) continue;
      found = sum;
      worst[bar] = i;
    }
    most = Math.max(most, found);
  }
  return { worst, most, tally };
}

function niceMaximum(most) {
  for (let power = 1; ; power *= 10)
    for (const factor of [1, 2, 3, 5]) if (factor * power >= most && factor * power >= 3) return factor * power;
}

function drawBars(canvas, { worst, tally }, width, top, colours) {
  const drawing = prepare(canvas, width, HEIGHT);
  const unit = (HEIGHT - TOP) / top;
  drawing.fillStyle = colours.line;
  for (let third = 1; third <= 3; third++)
    drawing.fillRect(0, Math.round(HEIGHT - ((HEIGHT - TOP) * third) / 3), width, 1);
  const wide = width / worst.length;
  const gap = wide >= 4 ? 1 : 0;
  const stack = [
    [tally.leftOut, colours.leftOut], [tally.late, colours.late], [tally.noUpdate, colours.noUpdate],
  ];
  const base = new Float32Array(worst.length).fill(HEIGHT);
  for (const [counts, colour] of stack) {
    drawing.fillStyle = colour;
    worst.forEach((index, bar) => {
      const height = counts[index] * unit;
      if (height === 0) return;
      base[bar] -= height;
      drawing.fillRect(bar * wide, base[bar], Math.max(1, wide - gap), height);
    });
  }
}

// The mark whose round is the worst of all: the one that the picture must name.
function worstMark(tally, marks) {
  let worst = null;
  let most = -1;
  for (const [number, text] of marks) {
    const index = number - tally.first;
    if (index < 0 || index >= tally.length) continue;
    const sum = tally.leftOut[index] + tally.late[index] + tally.noUpdate[index];
    if (sum > most) [worst, most] = [[number, text], sum];
  }
  return worst;
}

function writeNote(note, mark, left, width) {
  note.hidden = mark === null;
  if (mark === null) return;
  const [number, text] = mark;
  note.replaceChildren(`${count(number)}: `, name(text));
  const x = left(number);
  const isRight = x > width / 2;
  note.style.left = isRight ? "" : `${x}px`;
  note.style.right = isRight ? `${width - x - 8}px` : "";
}
