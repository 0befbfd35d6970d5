// The words to the left of the curve and the bars: the newest value, the best, the median time.

import { element } from "./dom.js";
import { metric as written, seconds } from "./format.js";

export function captions() {
  const name = element("span", { class: "caption-name" });
  const value = element("strong", { class: "caption-value", "data-metric-value": true });
  const best = element("span", { class: "caption-more" });
  const median = element("span", { class: "caption-more" });
  const metricBlock = element("p", { class: "caption metric" }, name, " ", value, comma(), best);
  const time = element("span", { class: "caption-name" }, "round time");
  const timeBlock = element("p", { class: "caption time" }, time, comma(), median);
  const root = element("div", {}, metricBlock, timeBlock);
  let version = "";

  return {
    root,
    update({ metric, layout }, rounds) {
      const key = [rounds.version, metric, layout.isCompact].join();
      if (key === version) return;
      version = key;
      metricBlock.hidden = metric === null;
      const times = rounds.numbers.map((number) => rounds.round(number).tookS);
      const middle = medianOf(times.filter((took) => took !== null));
      timeBlock.hidden = middle === null;
      median.textContent = middle === null ? "" : `median ${seconds(middle)}`;
      if (metric === null) return;
      const place = rounds.metrics.indexOf(metric);
      const values = rounds.numbers
        .map((number) => [number, rounds.round(number).metrics[place] ?? null])
        .filter(([, one]) => one !== null);
      name.textContent = metric;
      name.title = metric;
      const newest = values.at(-1);
      value.textContent = newest ? written(metric, newest[1]) : "—";
      const isHigher = rounds.higherIsBetter[place];
      best.textContent = newest ? bestWords(metric, values, newest[0], isHigher, layout.isCompact) : "";
    },
  };
}

// Where the captions stand in one line.
const comma = () => element("span", { class: "caption-comma" }, ", ");

function bestWords(metric, values, newest, isHigher, isCompact) {
  const isBetter = (one, other) => (isHigher ? one[1] > other[1] : one[1] < other[1]);
  const [number, value] = values.reduce((best, one) => (isBetter(one, best) ? one : best));
  const best = `best ${written(metric, value)} in ${isCompact ? "round " : ""}${number}`;
  return isCompact ? best : `round ${newest}; ${best}`;
}

function medianOf(values) {
  if (values.length === 0) return null;
  const sorted = values.sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
