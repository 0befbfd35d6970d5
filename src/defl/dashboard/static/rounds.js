// The page /rounds: every round that is on record, newest first, a page of them at a time.

import { element, name } from "./dom.js";
import { count, exactSeconds, metric, moment, NONE } from "./format.js";
import { markIcon, WORDS } from "./marks.js";
import { refresh, refreshList } from "./refresh.js";
import { VERDICT } from "./store.js";

const PAGE = 50;
const METRICS_MAX = 3;
const COUNTED = [VERDICT.KEPT, VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE];

export function mount(root, context) {
  const hint = element("span", { class: "hint" });
  const head = element("tr");
  const body = element("tbody", { onkeydown: move });
  const empty = element("p", { class: "muted", hidden: true }, "No round has closed yet.");
  const number = element("input", { type: "number", min: 1, step: 1, inputmode: "numeric", required: true,
                                    "aria-label": "number of the round" });
  const jump = element("form", { class: "jump", role: "search", "data-jump": true, onsubmit: open },
    "go to round ", number, element("button", { class: "button", type: "submit" }, "Open"));
  const newer = element("a", { class: "button", rel: "prev", "data-newer": true }, "‹ newer");
  const older = element("a", { class: "button", rel: "next", "data-older": true }, "older ›");
  root.append(
    element("section", { class: "panel", "aria-labelledby": "rounds" },
      element("div", { class: "panel-head" }, element("h1", { id: "rounds", class: "panel-title" }, "Rounds"), hint,
        element("span", { class: "actions" }, jump)),
      element("div", { class: "scroll" },
        element("table", { class: "data rounds", "data-rounds": true }, element("thead", {}, head), body)),
      empty,
      element("nav", { class: "pager", "aria-label": "more rounds" }, newer, older)));

  function open(event) {
    event.preventDefault();
    if (number.value) context.go(`/rounds/${Number(number.value)}`);
  }

  // Arrows go from round to round; PageUp and PageDown to newer and older ones.
  function move(event) {
    const links = [...body.querySelectorAll("a")];
    const place = links.indexOf(event.target);
    const to = { ArrowUp: place - 1, ArrowDown: place + 1, Home: 0, End: links.length - 1 }[event.key];
    const page = { PageUp: newer, PageDown: older }[event.key];
    if (place < 0 || (to === undefined && page === undefined)) return;
    event.preventDefault();
    if (to !== undefined) links[to]?.focus();
    else if (!page.hidden) context.go(page.getAttribute("href"));
  }

  function update(overview, rounds) {
    const all = rounds.numbers;
    const before = Number(context.query.get("before")) || Infinity;
    const end = upTo(all, before);
    const shown = all.slice(Math.max(0, end - PAGE), end).reverse();
    number.max = overview.rounds_total;
    empty.hidden = all.length > 0;
    refresh(hint, [shown[0], shown.at(-1), all.length], () =>
      (shown.length ? `${count(shown.at(-1))} to ${count(shown[0])}, newest first; ${count(all.length)} are on record` : ""));
    const metrics = rounds.metrics.slice(0, METRICS_MAX);
    refresh(head, metrics, () => ["round", "closed", "took", "", "left out, late or missing", ...metrics, "proven"].map((words, place) =>
      element("th", { scope: "col", class: [0, 2].includes(place) || place > 4 ? "number" : null },
        words || element("span", {}, "kept and not"))));
    refreshList(body, shown, () => element("tr"), (row, each) => {
      const round = rounds.round(each);
      row.dataset.round = each;
      refresh(row, [round, metrics, rounds.members.length], () => cellsOf(round, metrics, rounds.members));
    });
    link(newer, end < all.length, all[Math.min(all.length, end + PAGE) - 1], end + PAGE >= all.length);
    link(older, end > PAGE, all[end - PAGE - 1], false);
  }

  return { update, unmount() {} };
}

// How many of the ascending `numbers` are at most `before`.
function upTo(numbers, before) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= before) low = middle + 1;
    else high = middle;
  }
  return low;
}

function link(anchor, isThere, before, isNewest) {
  anchor.hidden = !isThere;
  anchor.setAttribute("href", isNewest ? "/rounds" : `/rounds?before=${before}`);
}

function cellsOf(round, metrics, members) {
  const cell = (label, content, kind = null) => element("td", { "data-label": label, class: kind }, ...[content].flat());
  return [
    cell("round", element("a", { href: `/rounds/${round.number}` }, count(round.number)), "number"),
    cell("closed", moment(round.closedAt)),
    cell("took", exactSeconds(round.tookS), "number"),
    cell("kept and not", element("span", { class: "tally" }, COUNTED.map((letter) => tally(round.cells, letter)))),
    cell("left out, late or missing", absent(round.cells, members)),
    ...metrics.map((title, place) => cell(title, metric(title, round.metrics[place]), "number")),
    cell("proven", round.isProven
      ? element("span", { class: "proven" }, "✓ proven") : element("span", { class: "muted" }, "not yet"), "number"),
  ];
}

function tally(cells, letter) {
  const found = [...cells].filter((each) => each === letter).length;
  if (found === 0 && letter !== VERDICT.KEPT) return null;
  return element("span", { class: "with-icon", title: WORDS[letter] }, markIcon(letter, 10), count(found),
    element("span", { class: "visually-hidden" }, ` ${WORDS[letter]}`));
}

const NAMED_MAX = 3;

function absent(cells, members) {
  const names = members.filter((_, place) => "xln".includes(cells[place]) && cells[place]);
  if (!names.length) return [element("span", { class: "muted" }, NONE)];
  const shown = names.slice(0, NAMED_MAX).flatMap((each, place) => [place ? ", " : "", name(each)]);
  return [element("span", {}, ...shown, names.length > NAMED_MAX ? ` and ${count(names.length - NAMED_MAX)} more` : "")];
}
