// The strip's title line: what is shown, older and newer rounds, the table, the choice of metric.

import { element } from "./dom.js";
import { count } from "./format.js";

// `on`: { metric(), table(), move(step) }
export function stripHead(on) {
  const hint = element("span", { class: "hint" });
  const button = (hook, words) => element("button", { class: "quiet", type: "button", [hook]: true }, words);
  const older = button("data-older", "‹ older");
  const newer = button("data-newer", "newer ›");
  const table = button("data-as-table", "As a table");
  const select = element("select", { class: "quiet", "data-metric": true });
  const arrow = element("span", { "aria-hidden": "true" }, " ▾");
  const chooser = element("label", { class: "metric-choice" }, "metric: ", select, arrow);
  const root = element(
    "div", { class: "panel-head" },
    element("h2", {}, "Whose update counted"), hint,
    element("div", { class: "actions" }, older, newer, table, chooser),
  );
  let step = 1;
  let isTable = false;
  let isWhole = true; // no rounds but those in the picture
  let isEmpty = true;
  let hasMetrics = false;
  // The table has its own buttons for older and newer rounds, and all metrics.
  const showChoices = () => {
    older.hidden = newer.hidden = isWhole || isTable;
    chooser.hidden = !hasMetrics || isTable || isEmpty;
    table.hidden = isEmpty;
  };
  older.addEventListener("click", () => on.move(-step));
  newer.addEventListener("click", () => on.move(step));
  table.addEventListener("click", on.table);
  select.addEventListener("change", on.metric);

  return {
    root,
    // The metric that is drawn; null: none has been evaluated yet.
    metric: (rounds) => (rounds.metrics.includes(select.value) ? select.value : rounds.metrics[0] ?? null),
    update(overview, rounds, picture) {
      step = Math.max(1, picture.layout.slots - 1);
      const words = hintWords(overview, picture);
      if (hint.textContent !== words) hint.textContent = words;
      isWhole = !picture.hasOlder && !picture.hasNewer;
      isEmpty = picture.columns.length === 0;
      hasMetrics = rounds.metrics.length > 0;
      showChoices();
      older.disabled = !picture.hasOlder;
      newer.disabled = !picture.hasNewer;
      const options = [...select.options].map((option) => option.value);
      if (options.join("\n") === rounds.metrics.join("\n")) return;
      const chosen = select.value;
      select.replaceChildren(...rounds.metrics.map((metric) => element("option", { value: metric }, metric)));
      if (rounds.metrics.includes(chosen)) select.value = chosen;
    },
    showTable(isWanted) {
      isTable = isWanted;
      showChoices();
      table.textContent = isTable ? "As a picture" : "As a table";
    },
    focusTable: () => table.focus(),
  };
}

function hintWords(overview, { columns, names, open, hasOlder, hasNewer, layout, metric }) {
  const closed = columns.filter((number) => number !== open);
  const isPart = hasOlder || hasNewer;
  const span = `rounds ${count(columns[0] ?? 0)} to ${count(columns.at(-1) ?? 0)}`;
  if (columns.length === 0) return `${names.length} members, no round yet`;
  if (layout.isCompact) return span;
  if (overview.whole && !isPart) {
    const agreed = `agreed by consensus, so one strip for all ${overview.n} nodes`;
    return metric === null ? agreed : `${agreed}; ${metric} as ${overview.nodes[0].name} evaluates it`;
  }
  if (closed.length === 0) return `${names.length} members, the first round is open`;
  const [first, newest] = [count(closed[0]), count(closed.at(-1))];
  const shown = closed.length === 1 ? `round ${first}` : `rounds ${first} to ${newest}`;
  return `${names.length} members, ${shown}${columns.at(-1) === open ? " and the open one" : ""}`;
}
