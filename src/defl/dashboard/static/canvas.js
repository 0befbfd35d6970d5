// A canvas as large as its box, sharp on every screen, redrawn when the box changes.

import { element } from "./dom.js";

// Sets the size in CSS pixels; everything is drawn in these.
export function prepare(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const drawing = canvas.getContext("2d");
  drawing.setTransform(scale, 0, 0, scale, 0, 0);
  drawing.clearRect(0, 0, width, height);
  return drawing;
}

// Round numbers along an axis: every 1, 2, 5, 10 ... so that they stand `room` pixels apart.
export function ticks(first, last, width, room) {
  const count = last - first + 1;
  let step = 1;
  for (let power = 1; (width / count) * step < room; power *= 10)
    for (const factor of [1, 2, 5])
      if ((width / count) * (step = factor * power) >= room) break;
  const places = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) places.push(at);
  if (step > 1 && first !== places[0] && (places[0] - first) * (width / count) >= room)
    places.unshift(first);
  return places;
}

const HALF_DIGIT = 3.2; // pixels, at 11 px

// Writes `labels` ([middle in pixels, text]) into `axis`, none beyond its right end.
export function writeAxis(axis, labels) {
  const width = axis.clientWidth;
  while (axis.children.length > labels.length) axis.lastChild.remove();
  labels.forEach(([left, text], i) => {
    const label = axis.children[i] ?? axis.appendChild(element("span"));
    if (label.textContent !== `${text}`) label.textContent = text;
    label.style.left = `${Math.min(left, width - HALF_DIGIT * `${text}`.length)}px`;
  });
}
