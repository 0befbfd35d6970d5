// Paints the strip: squares, the proven line, what happened, the bars of round time.

import { plain } from "./dom.js";
import { drawMark } from "./marks.js";
import { seconds } from "./format.js";
import { placeTexts } from "./strip_layout.js";

// `picture`: see strip.js. Returns the rounds whose event is written out.
export function paintStrip(canvas, picture, colours) {
  const { layout } = picture;
  const scale = window.devicePixelRatio;
  const width = Math.round(layout.width * scale);
  const height = Math.round(layout.y.end * scale);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.y.end}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, layout.width, layout.y.end);
  paintSquares(context, picture, colours);
  paintProven(context, picture, colours);
  paintTimes(context, picture, colours);
  return layout.y.marks === null ? new Set() : paintHappened(context, picture, colours);
}

const left = (layout, place) => layout.label + place * layout.pitch;
const middle = (layout, place) => left(layout, place) + layout.size / 2;

function paintSquares(context, { layout, columns, names, letter }, colours) {
  names.forEach((_, row) => {
    const y = layout.top + row * layout.pitch;
    columns.forEach((number, place) =>
      drawMark(context, letter(row, number), left(layout, place), y, layout.size, colours));
  });
}

// Under each column: solid if its model is proven, dotted if not yet.
function paintProven(context, { layout, columns, isProven }, colours) {
  for (let place = 0; place < columns.length; ) {
    const proven = isProven(columns[place]);
    let end = place;
    while (end < columns.length && isProven(columns[end]) === proven) end++;
    const isLast = end === columns.length;
    context.beginPath();
    context.moveTo(left(layout, place), layout.y.proven);
    context.lineTo(left(layout, end) - (isLast ? layout.gap : 0), layout.y.proven);
    context.lineWidth = 2;
    context.strokeStyle = proven ? colours.good : colours.muted;
    context.setLineDash(proven ? [] : [2, 2]);
    context.stroke();
    context.setLineDash([]);
    place = end;
  }
}

function paintHappened(context, { layout, columns, marks }, colours) {
  const texts = new Map();
  for (const [number, text] of marks) {
    const place = columns.indexOf(number);
    if (place >= 0) texts.set(place, texts.has(place) ? `${texts.get(place)}, ${text}` : text);
  }
  const places = [...texts]
    .sort((a, b) => a[0] - b[0])
    .map(([place, text]) => [middle(layout, place), plain(text), columns[place]]);
  context.font = `11px ${colours.sans}`;
  context.textBaseline = "middle";
  const right = left(layout, layout.slots) - layout.gap;
  const written = new Set();
  const widthOf = (words) => context.measureText(words).width;
  for (const [x, text, side, number] of placeTexts(places, widthOf, right)) {
    context.fillStyle = colours.rule;
    context.fillRect(Math.round(x), layout.y.marks, 1, layout.y.curveEnd - layout.y.marks);
    if (side === null) continue;
    context.textAlign = side === "right" ? "left" : "right";
    context.fillStyle = colours.text;
    context.fillText(text, side === "right" ? x + 5 : x - 5, layout.y.markText);
    written.add(number);
  }
  return written;
}

function paintTimes(context, { layout, columns, open, tookS, timeMax }, colours) {
  const { time, timeEnd } = layout.y;
  const right = left(layout, layout.slots) - layout.gap;
  columns.forEach((number, place) => {
    const lasted = tookS(number);
    if (lasted === null || timeMax === 0) return;
    const height = Math.max(1, ((timeEnd - 1 - time) * Math.min(lasted, timeMax)) / timeMax);
    const box = [left(layout, place), timeEnd - 1 - height, layout.size, height];
    if (number === open) paintHatched(context, ...box, colours);
    else {
      const round = Math.min(1.5, height);
      context.beginPath();
      context.roundRect(...box, [round, round, 0, 0]);
      context.fillStyle = colours.bar;
      context.fill();
    }
  });
  if (layout.isCompact) return;
  context.fillStyle = colours.rule;
  context.fillRect(layout.label - 4, timeEnd - 1, right - layout.label + 4, 1);
  context.font = `11px ${colours.sans}`;
  context.fillStyle = colours.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("0", layout.label - 10, timeEnd - 2);
  if (timeMax > 0) context.fillText(seconds(timeMax), layout.label - 10, time + 4);
}

function paintHatched(context, x, y, width, height, colours) {
  context.save();
  context.beginPath();
  context.rect(x + 0.5, y + 0.5, width - 1, Math.max(0, height - 1));
  context.strokeStyle = colours.bar;
  context.lineWidth = 1;
  context.stroke();
  context.clip();
  context.beginPath();
  for (let from = -height; from < width; from += 5) {
    context.moveTo(x + from, y + height);
    context.lineTo(x + from + height, y);
  }
  context.stroke();
  context.restore();
}
