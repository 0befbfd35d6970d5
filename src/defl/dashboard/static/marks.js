// The square of each verdict: on a canvas and as an icon. Shape tells them apart, not colour alone.

import { svg } from "./dom.js";
import { VERDICT } from "./store.js";

export const AWAITED = "awaited";

export const WORDS = {
  [VERDICT.KEPT]: "kept",
  [VERDICT.LEFT_OUT]: "left out by the rule",
  [VERDICT.LATE]: "late",
  [VERDICT.NO_UPDATE]: "no update",
  [VERDICT.NOT_A_MEMBER]: "not a member",
  [VERDICT.PENDING]: "in, not judged yet",
  [VERDICT.UNKNOWN]: "no record",
  [AWAITED]: "awaited",
};

// `x`, `y`: the left upper corner; `size` in CSS pixels.
export function drawMark(canvas, letter, x, y, size, colours) {
  const radius = size * 0.14;
  const rim = Math.max(1, size * 0.1);
  const square = (inset) => {
    canvas.beginPath();
    canvas.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, radius);
  };
  canvas.lineWidth = rim;
  switch (letter) {
    case VERDICT.KEPT:
      square(0);
      canvas.fillStyle = colours.kept;
      canvas.fill();
      break;
    case VERDICT.LEFT_OUT:
      square(0);
      canvas.fillStyle = colours.leftOut;
      canvas.fill();
      drawCross(canvas, x, y, size, colours.onMark);
      break;
    case VERDICT.LATE:
      square(rim / 2);
      canvas.fillStyle = colours.half;
      canvas.fill();
      canvas.save();
      canvas.clip();
      canvas.beginPath();
      canvas.moveTo(x + size, y);
      canvas.lineTo(x + size, y + size);
      canvas.lineTo(x, y + size);
      canvas.closePath();
      canvas.fillStyle = colours.late;
      canvas.fill();
      canvas.restore();
      square(rim / 2);
      canvas.strokeStyle = colours.late;
      canvas.stroke();
      break;
    case VERDICT.NO_UPDATE:
      square(rim / 2);
      canvas.strokeStyle = colours.noUpdate;
      canvas.stroke();
      break;
    case VERDICT.NOT_A_MEMBER:
      canvas.beginPath();
      canvas.arc(x + size / 2, y + size / 2, Math.max(1, size * 0.08), 0, 2 * Math.PI);
      canvas.fillStyle = colours.notAMember;
      canvas.fill();
      break;
    case VERDICT.PENDING:
      square(rim / 2);
      canvas.strokeStyle = colours.kept;
      canvas.stroke();
      canvas.fillStyle = colours.kept;
      canvas.fillRect(x + size * 0.32, y + size * 0.32, size * 0.36, size * 0.36);
      break;
    case AWAITED:
      square(rim / 2);
      canvas.setLineDash([size * 0.16, size * 0.12]);
      canvas.strokeStyle = colours.link;
      canvas.stroke();
      canvas.setLineDash([]);
      break;
    default: // no record: a short stroke
      canvas.fillStyle = colours.notAMember;
      canvas.fillRect(x + size * 0.3, y + size / 2 - rim / 2, size * 0.4, rim);
  }
}

function drawCross(canvas, x, y, size, colour) {
  const from = size * 0.29;
  const to = size - from;
  canvas.beginPath();
  canvas.moveTo(x + from, y + from);
  canvas.lineTo(x + to, y + to);
  canvas.moveTo(x + to, y + from);
  canvas.lineTo(x + from, y + to);
  canvas.lineCap = "round";
  canvas.lineWidth = Math.max(1.2, size * 0.12);
  canvas.strokeStyle = colour;
  canvas.stroke();
  canvas.lineCap = "butt";
}

// The same as an <svg>; decoration, so whatever stands beside it must say it in words.
export function markIcon(letter, size = 12) {
  return svg(
    "svg",
    { width: size, height: size, viewBox: "0 0 16 16", "data-mark": letter, "aria-hidden": "true" },
    ...shapes(letter),
  );
}

function shapes(letter) {
  const rim = { x: 0.8, y: 0.8, width: 14.4, height: 14.4, rx: 2.2, fill: "none", "stroke-width": 1.6 };
  const full = { x: 0, y: 0, width: 16, height: 16, rx: 2.4 };
  switch (letter) {
    case VERDICT.KEPT:
      return [svg("rect", { ...full, fill: "var(--kept)" })];
    case VERDICT.LEFT_OUT:
      return [
        svg("rect", { ...full, fill: "var(--left-out)" }),
        svg("path", { d: "M4.8 4.8 11.2 11.2M11.2 4.8 4.8 11.2", stroke: "var(--on-mark)",
                      "stroke-width": 2, "stroke-linecap": "round" }),
      ];
    case VERDICT.LATE:
      return [
        svg("rect", { ...full, fill: "var(--half)" }),
        svg("path", { d: "M15.2 1.2V13a2.2 2.2 0 0 1-2.2 2.2H1.2Z", fill: "var(--late)" }),
        svg("rect", { ...rim, stroke: "var(--late)" }),
      ];
    case VERDICT.NO_UPDATE:
      return [svg("rect", { ...rim, stroke: "var(--no-update)" })];
    case VERDICT.NOT_A_MEMBER:
      return [svg("circle", { cx: 8, cy: 8, r: 1.4, fill: "var(--not-a-member)" })];
    case VERDICT.PENDING:
      return [
        svg("rect", { ...rim, stroke: "var(--kept)" }),
        svg("rect", { x: 5, y: 5, width: 6, height: 6, fill: "var(--kept)" }),
      ];
    case AWAITED:
      return [svg("rect", { ...rim, stroke: "var(--link)", "stroke-dasharray": "2.6 1.9" })];
    default:
      return [svg("rect", { x: 5, y: 7.2, width: 6, height: 1.6, fill: "var(--not-a-member)" })];
  }
}
