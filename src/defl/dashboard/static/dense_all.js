// "All 100": every member and every round in one picture. A cell is some rounds of a member; kept is
// the ground. Exceptions keep a size that can be seen and a place of their own, so none is hidden.

import { prepare, ticks, writeAxis } from "./canvas.js";
import { element, name } from "./dom.js";
import { count } from "./format.js";
import { CODE, isException } from "./tally.js";

const CELL_MIN = 7; // pixels wide, with the gap
const PICTURE = 520; // pixels tall if the members allow it
const ROW_MIN = 5;
const ROW_MAX = 13;
const LABEL = 13;
const STEPS = [1, 2, 4, 5, 10, 20, 40, 50]; // rounds per cell, and these times a power of ten

export const sentence = (rounds) =>
  rounds === 1
    ? "a cell is 1 round and kept is the ground; left out takes the whole width, no update the left half, late the right third"
    : `a cell is ${rounds} rounds and kept is the ground; left out takes the whole width, no update ` +
      `the left half, late the right third; height is how many of the ${rounds}, never less than a third`;

// Per member and cell: how many rounds have each verdict. Changed rounds recount their cells only.
class Cells {
  constructor(tally, rounds) {
    this.rounds = rounds;
    this.members = tally.members;
    this.first = tally.first;
    this.#grow(tally);
    for (let cell = 0; cell < this.length; cell++) this.#count(tally, cell);
  }

  fits(tally, rounds) {
    return this.rounds === rounds && this.members === tally.members && this.first === tally.first;
  }

  refresh(tally, changed) {
    this.#grow(tally);
    for (const cell of new Set(changed.map((index) => Math.floor(index / this.rounds))))
      this.#count(tally, cell);
  }

  #grow(tally) {
    this.length = Math.ceil(tally.length / this.rounds);
    const size = this.length * this.members;
    if (this.leftOut?.length >= size) return;
    for (const key of ["leftOut", "late", "noUpdate", "outside"]) {
      const grown = new Uint16Array(2 * size);
      if (this[key]) grown.set(this[key]);
      this[key] = grown;
    }
  }

  #count(tally, cell) {
    const { members, leftOut, late, noUpdate, outside } = this;
    const base = cell * members;
    for (const counts of [leftOut, late, noUpdate, outside]) counts.fill(0, base, base + members);
    const to = Math.min((cell + 1) * this.rounds, tally.length);
    for (let index = cell * this.rounds; index < to; index++)
      for (let member = 0; member < members; member++) {
        const letter = tally.letters[index * members + member];
        if (letter === CODE.KEPT) continue;
        if (letter === CODE.LEFT_OUT) leftOut[base + member]++;
        else if (letter === CODE.LATE) late[base + member]++;
        else if (letter === CODE.NO_UPDATE) noUpdate[base + member]++;
        else if (letter !== CODE.PENDING) outside[base + member]++;
      }
  }
}

export function allMembers() {
  const names = element("div", { class: "dense-label dense-sparse" });
  const canvas = element("canvas", { "aria-hidden": "true" });
  const stage = element("div", { class: "dense-stage dense-wide" }, canvas);
  const axis = element("div", { class: "axis dense-wide", "aria-hidden": "true" });
  let cells = null;
  let pending = []; // changed rounds that the cells do not know yet
  let order = [];
  let rowHeight = ROW_MIN;
  let tallied = null;

  const pitch = () => stage.clientWidth / cells.length;

  return {
    stage,
    cells: [element("div"), axis, names, stage],
    // Rounds that changed, also while another view is shown.
    changed(indices) {
      if (cells !== null) pending.push(...indices);
    },
    draw(tally, titles, isWanted, cursor, colours) {
      tallied = tally;
      if (!stage.clientWidth || !tally.length) return 0;
      const rounds = roundsPerCell(tally.length, stage.clientWidth);
      if (cells?.fits(tally, rounds)) cells.refresh(tally, pending);
      else cells = new Cells(tally, rounds);
      pending = [];
      order = titles.map((_, member) => member)
        .filter((member) => isWanted === null || isWanted(titles[member]))
        .sort((a, b) => trouble(tally, b) - trouble(tally, a) || a - b);
      rowHeight = Math.min(ROW_MAX, Math.max(ROW_MIN, Math.floor(PICTURE / Math.max(1, order.length))));
      writeNames(names, titles, order, tally, rowHeight);
      writeAxis(axis, ticks(tally.first, tally.last, stage.clientWidth, 60)
        .map((number) => [((number - tally.first) / cells.rounds) * pitch(), count(number)])
        .filter(([left]) => left < stage.clientWidth - 40));
      return drawPicture(canvas, stage.clientWidth, cells, order, rowHeight, tally, cursor, colours);
    },
    get step() {
      return cells?.rounds ?? 1;
    },
    get order() {
      return order;
    },
    at(x, y) {
      const row = Math.floor(y / rowHeight);
      const cell = Math.floor(x / pitch());
      if (row >= order.length || cell >= cells.length) return null;
      const number = tallied.first + cell * cells.rounds;
      return { member: order[row], number: this.tell(tallied, order[row], number) };
    },
    // Of the rounds of a cell the one to tell about: its first exception.
    tell(tally, member, number) {
      const start = tally.first + Math.floor((number - tally.first) / this.step) * this.step;
      for (let at = start; at < start + this.step && at <= tally.last; at++)
        if (isException(tally.letter(member, at))) return at;
      return start;
    },
  };
}

const trouble = (tally, member) => tally.judged[member] - tally.kept[member];

function roundsPerCell(length, width) {
  const least = Math.ceil(length / Math.floor(width / CELL_MIN));
  for (let power = 1; ; power *= 10)
    for (const step of STEPS) if (step * power >= least) return step * power;
}

// As many names as there is room for; members without trouble need none.
function writeNames(names, titles, order, tally, rowHeight) {
  const every = Math.ceil(LABEL / rowHeight);
  names.replaceChildren(...order.flatMap((member, row) => {
    if (row % every || (every > 1 && trouble(tally, member) === 0)) return [];
    const label = element("div", { title: titles[member] }, name(titles[member]));
    label.style.top = `${row * rowHeight + rowHeight / 2 - LABEL / 2}px`;
    return [label];
  }));
}

// Returns how many cells it has drawn something in besides the ground.
function drawPicture(canvas, width, cells, order, rowHeight, tally, cursor, colours) {
  const height = order.length * rowHeight;
  const drawing = prepare(canvas, width, height);
  const pitch = width / cells.length;
  const tall = rowHeight - 1;
  drawing.fillStyle = colours.keptDense;
  for (let row = 0; row < order.length; row++) drawing.fillRect(0, row * rowHeight, width, tall);
  drawing.fillStyle = colours.panel;
  for (let cell = 1; cell < cells.length; cell++) drawing.fillRect(cell * pitch - 1, 0, 1, height);
  const wide = pitch - 1;
  let drawn = 0;
  const part = (colour, counted, x, y, from, to) => {
    if (counted === 0) return;
    const h = Math.max(2, tall / 3, (tall * counted) / cells.rounds);
    drawing.fillStyle = colour;
    drawing.fillRect(x + from * wide, y + tall - h, (to - from) * wide, h);
    drawn++;
  };
  order.forEach((member, row) => {
    const y = row * rowHeight;
    for (let cell = 0; cell < cells.length; cell++) {
      const at = cell * cells.members + member;
      const x = cell * pitch;
      const rounds = Math.min(cells.rounds, tally.length - cell * cells.rounds);
      if (cells.outside[at] === rounds) {
        drawing.clearRect(x, y, wide, tall);
        part(colours.notAMember, 1, x, y - tall / 3, 0.42, 0.58);
        continue;
      }
      part(colours.leftOut, cells.leftOut[at], x, y, 0, 1);
      part(colours.noUpdate, cells.noUpdate[at], x, y, 0, 0.5);
      part(colours.late, cells.late[at], x, y, 0.67, 1);
    }
  });
  const row = cursor === null ? -1 : order.indexOf(cursor.member);
  if (row >= 0) {
    const cell = Math.floor((cursor.number - tally.first) / cells.rounds);
    drawing.strokeStyle = colours.text;
    drawing.lineWidth = 1.5;
    drawing.strokeRect(cell * pitch - 1, row * rowHeight - 1, pitch + 1, rowHeight + 1);
  }
  return drawn;
}
