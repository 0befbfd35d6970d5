// Where things of the strip stand: pure functions from width and rounds to places in CSS pixels.
// Strip, metric and round time share one axis: a column is a round.

import { AWAITED } from "./marks.js";
import { VERDICT } from "./store.js";

const COMPACT_BELOW = 720; // width of the panel's inside
const WIDE = { isCompact: false, pitch: 20, pitchMax: 28, gap: 4, top: 20, axis: 46, side: 231, sideGap: 20 };
const COMPACT = { isCompact: true, pitch: 14, pitchMax: 20, gap: 3, top: 16, axis: 40, side: 38, sideGap: 0 };
const WIDE_LABEL = 131;
const COMPACT_LABEL_MIN = 40;
const COMPACT_LABEL_MAX = 84; // longer names are cut off
const SLOTS_MIN = 10;

// Below the squares, from their lower edge.
const WIDE_BELOW = {
  proven: 7, marks: 14, markText: 25, curve: 38, curveEnd: 156, time: 171, timeEnd: 209, end: 236,
};
const COMPACT_BELOW_SQUARES = {
  proven: 6, marks: null, markText: null, curve: 34, curveEnd: 92, time: 118, timeEnd: 146, end: 148,
};

// As many columns as fit, or as there will be rounds: squares grow a little if these are few.
export function layoutOf(width, rows, longestName, roundsTotal) {
  const kind = width < COMPACT_BELOW ? COMPACT : WIDE;
  const { gap, top } = kind;
  const label = kind.isCompact
    ? Math.min(COMPACT_LABEL_MAX, Math.max(COMPACT_LABEL_MIN, Math.ceil(longestName) + 5))
    : WIDE_LABEL;
  const room = width - label - kind.side - kind.sideGap + gap;
  const fitting = Math.max(4, Math.floor(room / kind.pitch));
  const slots = Math.min(fitting, Math.max(SLOTS_MIN, roundsTotal));
  const pitch = Math.max(kind.pitch, Math.min(kind.pitchMax, Math.floor(room / slots)));
  const bottom = top + rows * pitch - gap;
  const below = kind.isCompact ? COMPACT_BELOW_SQUARES : WIDE_BELOW;
  const y = Object.fromEntries(
    Object.entries(below).map(([what, distance]) => [what, distance === null ? null : bottom + distance]),
  );
  return { ...kind, label, slots, pitch, size: pitch - gap, bottom, y, width: label + slots * pitch };
}

// The rounds that are shown: the newest `slots`, or those up to and with round `last`.
export function windowOf(numbers, open, slots, last) {
  const all = open !== null && open > (numbers.at(-1) ?? 0) ? [...numbers, open] : numbers;
  let end = all.length;
  if (last !== null) {
    const place = all.findIndex((number) => number >= last);
    if (place >= 0) end = Math.max(Math.min(slots, all.length), place + 1);
  }
  const start = Math.max(0, end - slots);
  return { columns: all.slice(start, end), all, hasOlder: start > 0, hasNewer: end < all.length };
}

// What is written above a column: the first round, every fifth and the open one, unless they touch.
export function columnTitles(columns, open, pitch) {
  const wide = (number) => Math.ceil((String(number).length * 7 + 6) / pitch);
  const titles = columns.map((number) => (number % 5 === 0 ? String(number) : ""));
  if (columns.length && !titles.slice(0, wide(columns[0])).some(Boolean)) titles[0] = String(columns[0]);
  const last = columns.length - 1;
  if (last >= 0 && columns[last] === open) {
    for (let back = 1; back < wide(open) && last - back >= 0; back++) titles[last - back] = "";
    titles[last] = String(open);
  }
  return titles;
}

// The letter of a member in the open round.
export function openLetter(name, member, open) {
  if (name in open.arrivals) return VERDICT.PENDING;
  if (open.awaited.includes(name)) return AWAITED;
  return member?.active ? AWAITED : VERDICT.NOT_A_MEMBER;
}

// Rounds where the set of left-out members changes: round -> "out" or "back".
export function changes(rounds, columns) {
  const found = new Map();
  for (const number of columns) {
    const now = rounds.round(number)?.cells;
    const before = rounds.round(number - 1)?.cells;
    if (now === undefined || before === undefined) continue;
    for (let place = 0; place < now.length; place++) {
      if (now[place] === VERDICT.LEFT_OUT && before[place] !== VERDICT.LEFT_OUT) {
        found.set(number, "out");
        break;
      }
      if (now[place] === VERDICT.KEPT && before[place] === VERDICT.LEFT_OUT) found.set(number, "back");
    }
  }
  return found;
}

// Texts beside the vertical lines: to the right of a line if there is room, else to its left,
// else none. `places`: [x, text, round], ascending; returns [x, text, "left" | "right" | null, round].
export function placeTexts(places, widthOf, right) {
  const PAD = 5; // between a line and its text
  const APART = 6; // between two texts
  let taken = -APART;
  return places.map(([x, text, number], place) => {
    const width = widthOf(text) + PAD;
    const next = places[place + 1]?.[0] ?? right;
    const isRightFree = x + width <= Math.min(next, right) && x >= taken;
    if (isRightFree) {
      taken = x + width;
      return [x, text, "right", number];
    }
    if (x - width >= taken + APART) {
      taken = x;
      return [x, text, "left", number];
    }
    taken = Math.max(taken, x);
    return [x, text, null, number];
  });
}
