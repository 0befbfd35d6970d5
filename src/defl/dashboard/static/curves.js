// The curve of a metric over the strip's columns: solid where the model is proven, dotted where it
// is not yet, marked only where the set of left-out members changes.

import { element } from "./dom.js";
import { isShare } from "./format.js";
import { drawMark } from "./marks.js";
import { palette } from "./palette.js";
import { VERDICT } from "./store.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const MARK = 11; // px
const POWERS = Array.from({ length: 18 }, (_, place) => place - 9);
const STEPS = POWERS.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));

export function metricCurve() {
  const root = element("div", { class: "strip-curve", "aria-hidden": "true" });
  let plot = null;
  let shape = ""; // what the plot was made for
  let drawn = null; // the newest picture

  function make() {
    const { layout } = drawn;
    const stroke = () => palette().text;
    const line = { scale: "y", points: { show: false }, width: 1.8, stroke, spanGaps: true };
    const words = (_, splits, _axis, _space, step) =>
      splits.map((value) => tick(drawn.metric, value, step, layout.isCompact));
    return new uPlot(
      {
        width: layout.axis + layout.slots * layout.pitch,
        height: layout.y.curveEnd - layout.y.curve,
        padding: [MARK / 2 + 1, 0, MARK / 2 + 1, 0],
        legend: { show: false },
        cursor: { show: false },
        select: { show: false },
        scales: { x: { time: false, range: () => [-0.5, drawn.layout.slots - 0.5] }, y: { range: padded } },
        axes: [
          { show: false },
          {
            size: layout.axis, gap: layout.isCompact ? 5 : 6, font: `11px ${palette().sans}`,
            incrs: STEPS, space: layout.isCompact ? 18 : 24, stroke: () => palette().muted,
            values: words,
            grid: { stroke: () => palette().line, width: 1 }, ticks: { show: false }, border: { show: false },
          },
        ],
        series: [{}, line, { ...line, dash: [2, 3] }],
        hooks: { draw: [drawMarks] },
      },
      data(),
      root,
    );
  }

  // Columns by place, not by number: what is missing leaves no hole in the axis.
  function data() {
    const { columns, value, isProven } = drawn;
    const places = columns.map((_, place) => place);
    const values = columns.map(value);
    const lastProven = columns.findLastIndex((number, place) => isProven(number) && values[place] !== null);
    return [
      places,
      values.map((one, place) => (place <= lastProven ? one : null)),
      values.map((one, place) => (place >= lastProven ? one : null)),
    ];
  }

  function drawMarks(u) {
    const { columns, value, changed } = drawn;
    const scale = uPlot.pxRatio;
    const colours = palette();
    const context = u.ctx;
    const pixel = (number, axis) => u.valToPos(number, axis, true) / scale;
    const at = (place) => [pixel(place, "x"), pixel(value(columns[place]), "y")];
    context.save();
    context.setLineDash([]);
    context.scale(scale, scale);
    let newest = -1;
    columns.forEach((number, place) => {
      if (value(number) === null) return;
      newest = place;
      const change = changed.get(number);
      if (change === undefined) return;
      const [x, y] = at(place);
      if (change === "out") drawMark(context, VERDICT.LEFT_OUT, x - MARK / 2, y - MARK / 2, MARK, colours);
      else {
        context.beginPath();
        context.rect(x - 3.5, y - 3.5, 7, 7);
        hollow(context, colours);
      }
    });
    if (newest >= 0 && !changed.has(columns[newest])) {
      context.beginPath();
      context.arc(...at(newest), 3.4, 0, 2 * Math.PI);
      hollow(context, colours);
    }
    context.restore();
  }

  return {
    root,
    update(picture) {
      drawn = picture;
      const { metric } = picture;
      const { axis, slots, pitch, y, isCompact } = picture.layout;
      root.hidden = metric === null;
      if (metric === null) return;
      const wanted = [axis, slots, pitch, y.curve, y.curveEnd, isCompact, metric].join();
      if (wanted === shape) plot.setData(data());
      else {
        plot?.destroy();
        shape = wanted;
        plot = make();
      }
    },
    redraw: () => plot?.redraw(),
    unmount: () => plot?.destroy(),
  };
}

function hollow(context, colours) {
  context.fillStyle = colours.panel;
  context.fill();
  context.lineWidth = 1.6;
  context.strokeStyle = colours.text;
  context.stroke();
}

function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const pad = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [low - pad, high + pad];
}

function tick(metric, value, step, isShort) {
  const share = isShare(metric);
  const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(share ? step * 100 : step) + 1e-9)));
  return share ? `${(100 * value).toFixed(digits)}${isShort ? "" : " %"}` : value.toFixed(digits);
}
