// "Trouble first": the rows of the window's rounds, members with most exceptions on top. Those that
// were kept in every round share one band, so a hundred members fit; an exception is never in it.

import { prepare, ticks, writeAxis } from "./canvas.js";
import { element, name } from "./dom.js";
import { count } from "./format.js";
import { drawMark } from "./marks.js";
import { CODE } from "./tally.js";

const ROW = 13; // pixels, with the gap
const SQUARE = 10;
const DENSE_BELOW = 8; // pixels: smaller squares become strokes on the ground of "kept"
const ROWS_MAX = 40; // before "show them all"
const FOOT = 10; // the line of proven rounds

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

export function troubleRows() {
  const names = element("div", { class: "dense-label dense-names" });
  const canvas = element("canvas", { "aria-hidden": "true" });
  const stage = element("div", { class: "dense-stage" }, canvas);
  const axis = element("div", { class: "axis", "aria-hidden": "true" });
  const counts = element("div", { class: "dense-side dense-counts" });
  const more = element("button", { class: "quiet dense-more", type: "button", hidden: true });
  const head = element("div", { class: "dense-side dense-columns" },
    element("span", {}, "kept here"), element("span", {}, "of all"));
  let order = []; // members, from the top
  let window = { first: 1, last: 1 };
  let showsAll = false;
  let lastDraw = null;

  more.addEventListener("click", () => {
    showsAll = !showsAll;
    draw(...lastDraw);
  });

  const pitch = () => stage.clientWidth / (window.last - window.first + 1);

  function draw(tally, titles, shown, isWanted, cursor, colours) {
    lastDraw = [tally, titles, shown, isWanted, cursor, colours];
    window = shown;
    if (!stage.clientWidth) return 0;
    const seen = tally.over(shown.first, shown.last);
    const chosen = chooseRows(seen, titles, isWanted);
    const hidden = showsAll ? 0 : Math.max(0, chosen.rows.length - ROWS_MAX);
    order = hidden ? chosen.rows.slice(0, ROWS_MAX) : chosen.rows;
    const isLong = chosen.rows.length > ROWS_MAX;
    more.hidden = !isLong;
    const rest = chosen.rows.slice(ROWS_MAX).map((member) => seen.exceptions[member]);
    if (isLong)
      more.textContent = showsAll
        ? `Only the ${ROWS_MAX} with most trouble`
        : `Show ${hidden} more with exceptions (at most ${Math.max(...rest)} each, ${sum(rest)} together)`;
    const rounds = shown.last - shown.first + 1;
    writeRows(names, counts, tally, titles, seen, order, chosen.bands, rounds);
    writeAxis(axis, ticks(shown.first, shown.last, stage.clientWidth, 44)
      .map((number) => [(number - shown.first + 0.5) * pitch(), count(number)]));
    return drawCells(canvas, stage.clientWidth, tally, shown, order, chosen.bands, cursor, colours);
  }

  return {
    stage,
    cells: [element("div"), axis, head, names, stage, counts, element("div"), more, element("div")],
    draw,
    step: 1,
    get order() {
      return order;
    },
    // The member and the round at a place on the stage.
    at(x, y) {
      const row = Math.floor(y / ROW);
      const number = window.first + Math.floor(x / pitch());
      return row < order.length && number <= window.last ? { member: order[row], number } : null;
    },
    tell: (_tally, _member, number) => number,
  };
}

// Members with an exception in the window, the worst first; the others in bands. With a search, the
// members that it finds.
function chooseRows({ kept, exceptions, outside }, titles, isWanted) {
  const members = titles.map((_, member) => member);
  if (isWanted !== null) return { rows: members.filter((member) => isWanted(titles[member])), bands: [] };
  const rows = members.filter((member) => exceptions[member] > 0)
    .sort((a, b) => kept[a] - kept[b] || exceptions[b] - exceptions[a] || a - b);
  const quiet = members.filter((member) => exceptions[member] === 0 && outside[member] === 0);
  const partial = members.filter((member) => exceptions[member] === 0 && outside[member] > 0);
  const bands = [];
  if (quiet.length) bands.push({ members: quiet, isQuiet: true });
  if (partial.length) bands.push({ members: partial, isQuiet: false });
  return { rows, bands };
}

function writeRows(names, counts, tally, titles, seen, order, bands, rounds) {
  names.replaceChildren(
    ...order.map((member) => element("div", { title: titles[member] }, name(titles[member]))),
    ...bands.map(({ members }) =>
      element("div", { class: "band" }, `${count(members.length)} ${order.length ? "others" : "members"}`)),
  );
  const share = (member) =>
    tally.judged[member] ? `${Math.floor((100 * tally.kept[member]) / tally.judged[member])} %` : "—";
  counts.replaceChildren(
    ...order.map((member) =>
      element("div", {},
        element("span", {}, `${seen.kept[member]} of ${rounds - seen.outside[member]}`),
        element("span", { class: "muted" }, share(member)))),
    ...bands.map(({ isQuiet }) =>
      element("div", { class: "band muted" }, isQuiet ? `kept in all ${rounds}` : "not in all; else kept")),
  );
}

// Returns how many squares it has drawn.
function drawCells(canvas, width, tally, shown, order, bands, cursor, colours) {
  const rows = order.length * ROW;
  const bandTop = rows + (order.length ? 6 : 0);
  const height = bandTop + bands.length * ROW + FOOT;
  const drawing = prepare(canvas, width, height);
  const rounds = shown.last - shown.first + 1;
  const pitch = width / rounds;
  const side = Math.min(SQUARE, pitch - (pitch > 4 ? 2 : 1));
  const isDense = side < DENSE_BELOW;
  let drawn = 0;
  const atRow = (top, letterOf, member) => {
    for (let i = 0; i < rounds; i++, drawn++) {
      const letter = letterOf(shown.first + i);
      const x = i * pitch + (pitch - side) / 2;
      const y = top + (ROW - SQUARE) / 2;
      if (member === null && letter === CODE.KEPT) {
        drawing.fillStyle = colours.keptDense;
        drawing.fillRect(x, y, side, SQUARE);
      } else if (isDense) drawStroke(drawing, letter, x, y, side, colours);
      else drawMark(drawing, String.fromCharCode(letter), x, y, side, colours);
    }
  };
  order.forEach((member, row) => atRow(row * ROW, (number) => tally.letter(member, number), member));
  bands.forEach(({ members, isQuiet }, band) =>
    atRow(bandTop + band * ROW, (number) =>
      isQuiet || members.every((member) => tally.letter(member, number) === CODE.KEPT)
        ? CODE.KEPT : CODE.NOT_A_MEMBER, null));
  drawProven(drawing, tally, shown, pitch, height - 5, colours);
  const row = cursor === null ? -1 : order.indexOf(cursor.member);
  if (row >= 0 && cursor.number >= shown.first && cursor.number <= shown.last) {
    drawing.strokeStyle = colours.text;
    drawing.lineWidth = 2;
    drawing.beginPath();
    drawing.roundRect((cursor.number - shown.first + 0.5) * pitch - side / 2 - 2, row * ROW, side + 4, ROW, 2.5);
    drawing.stroke();
  }
  return drawn;
}

// Where a square has no room for its shape: height tells the verdicts apart besides the colour.
function drawStroke(drawing, letter, x, y, side, colours) {
  drawing.fillStyle = colours.keptDense;
  if (letter !== CODE.NOT_A_MEMBER && letter !== CODE.UNKNOWN) drawing.fillRect(x, y, side, SQUARE);
  const [colour, from, tall] =
    letter === CODE.LEFT_OUT ? [colours.leftOut, 0, 1]
    : letter === CODE.LATE ? [colours.late, 0.6, 0.4]
    : letter === CODE.NO_UPDATE ? [colours.noUpdate, 0, 0.6]
    : letter === CODE.NOT_A_MEMBER ? [colours.notAMember, 0.45, 0.1]
    : [null, 0, 0];
  if (colour === null) return;
  drawing.fillStyle = colour;
  drawing.fillRect(x, y + from * SQUARE, side, tall * SQUARE);
}

// Proven rounds: a line; those that are not yet: dots.
function drawProven(drawing, tally, shown, pitch, y, colours) {
  for (let number = shown.first; number <= shown.last; number++) {
    const x = (number - shown.first) * pitch;
    const isProven = tally.proven[number - tally.first] === 1;
    drawing.fillStyle = isProven ? colours.good : colours.muted;
    if (isProven) drawing.fillRect(x, y, pitch + 0.5, 2);
    else for (let dot = 0; dot < pitch - 2; dot += 4) drawing.fillRect(x + dot + 1, y, 2, 2);
  }
}
