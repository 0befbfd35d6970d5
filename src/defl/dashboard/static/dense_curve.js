// The curve of a metric below the rows of many members: the same rounds on the same axis.

import { metricCurve } from "./curves.js";
import { element } from "./dom.js";
import { metric as written } from "./format.js";
import { changes } from "./strip_layout.js";

const HEIGHT = 120;
const AXIS = 46; // pixels for the values, left of the first round
const MARKS_MAX = 12; // of a hundred members some are left out in nearly every round

// `redraw()`: another metric was chosen.
export function denseCurve(redraw) {
  const curve = metricCurve();
  const select = element("select", { class: "quiet", "data-metric": true, "aria-label": "metric", onchange: redraw });
  const value = element("strong", { "data-metric-value": true });
  const caption = element("div", { class: "dense-label dense-caption" }, select, value);
  const stage = element("div", { class: "dense-curve" }, curve.root);

  return {
    cells: [caption, stage],
    draw(rounds, { first, last }, width) {
      const metric = rounds.metrics.includes(select.value) ? select.value : rounds.metrics[0] ?? null;
      caption.hidden = stage.hidden = metric === null || !width;
      if (stage.hidden) return;
      offer(select, rounds.metrics, metric);
      const place = rounds.metrics.indexOf(metric);
      const columns = Array.from({ length: last - first + 1 }, (_, i) => first + i);
      const valueOf = (number) => rounds.round(number)?.metrics[place] ?? null;
      const newest = columns.findLast((number) => valueOf(number) !== null);
      value.textContent = newest === undefined ? "—" : written(metric, valueOf(newest));
      const changed = changes(rounds, columns);
      curve.update({
        layout: { axis: AXIS, slots: columns.length, pitch: width / columns.length, isCompact: false,
                  y: { curve: 0, curveEnd: HEIGHT } },
        columns, metric, value: valueOf,
        changed: changed.size <= MARKS_MAX ? changed : new Map(),
        isProven: (number) => rounds.round(number)?.isProven ?? false,
      });
    },
    redraw: curve.redraw,
    unmount: curve.unmount,
  };
}

function offer(select, metrics, chosen) {
  const offered = [...select.options].map((option) => option.value);
  if (offered.join("\n") === metrics.join("\n")) return;
  select.replaceChildren(...metrics.map((metric) => element("option", { value: metric }, metric)));
  select.value = chosen;
}
