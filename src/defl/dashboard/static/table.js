// "As a table": the strip and the curves as rounds in a real table, newest first, a page at a time.

import { element, name } from "./dom.js";
import { clock, count, metric, seconds } from "./format.js";
import { WORDS } from "./marks.js";
import { VERDICT } from "./store.js";

const PAGE = 50; // rounds
const LISTED = [VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE, VERDICT.NOT_A_MEMBER,
                VERDICT.UNKNOWN, VERDICT.PENDING];

export function mount(root) {
  const shown = element("span", { class: "hint", role: "status" });
  const button = (text, onclick) => element("button", { class: "button", type: "button", onclick }, text);
  const newer = button("‹ newer", () => turn(-1));
  const older = button("older ›", () => turn(1));
  const wanted = element("input", { type: "number", min: 1, step: 1, id: "table-round", class: "field" });
  const jump = element("form", { class: "jump", onsubmit: (event) => { event.preventDefault(); jumpTo(); } },
    element("label", { for: "table-round" }, "round "), wanted,
    element("button", { class: "button", type: "submit" }, "show"));
  const head = element("thead");
  const body = element("tbody");
  const caption = element("caption", { class: "visually-hidden" }, "Rounds: whose update counted, and the metrics");
  root.append(
    element("div", { class: "table-turn" }, newer, older, shown, jump),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rounds as a table" },
      element("table", { class: "data rounds-table" }, caption, head, body)),
  );
  let rounds = null;
  let end = null; // the page's newest round as a place in rounds.numbers; null: the newest there is
  let painted = ""; // what the table shows, to leave it alone while nothing has changed

  function turn(by) {
    const newest = rounds.numbers.length - 1;
    const to = (end ?? newest) - by * PAGE;
    end = to >= newest ? null : Math.max(Math.min(PAGE, rounds.numbers.length) - 1, to);
    paint();
  }

  function jumpTo() {
    const place = rounds.numbers.findIndex((number) => number >= Number(wanted.value));
    end = place < 0 || place === rounds.numbers.length - 1 ? null : place;
    paint();
  }

  function paint() {
    const to = end ?? rounds.numbers.length - 1;
    const from = Math.max(0, to - PAGE + 1);
    const key = `${rounds.version} ${from} ${to}`;
    if (key === painted) return;
    painted = key;
    const numbers = rounds.numbers.slice(from, to + 1).reverse();
    const pages = numbers.map((number) => rounds.round(number));
    const letters = LISTED.filter((letter) => pages.some((row) => row.cells.includes(letter)));
    head.replaceChildren(headRow(rounds, letters));
    body.replaceChildren(...pages.map((row) => bodyRow(rounds, row, letters)));
    newer.disabled = to >= rounds.numbers.length - 1;
    older.disabled = from === 0;
    shown.textContent = numbers.length
      ? `rounds ${count(numbers.at(-1))} to ${count(numbers[0])} of ${count(rounds.numbers.at(-1))}`
      : "no rounds yet";
  }

  return {
    // `window`: the rounds that the picture shows; the table starts with its newest one.
    update(_overview, fetched, window = null) {
      if (rounds === null && window !== null) {
        const place = fetched.numbers.indexOf(window.last);
        end = place < 0 || place === fetched.numbers.length - 1 ? null : place;
      }
      rounds = fetched;
      if (rounds.numbers.length === 0) end = null;
      paint();
    },
    unmount() {},
  };
}

function headRow(rounds, letters) {
  const cell = (text, isNumber = false) =>
    element("th", { scope: "col", class: isNumber ? "number" : null }, text);
  return element("tr", {}, cell("round", true), cell("closed"), cell("took", true), cell("proven"),
    ...rounds.metrics.map((title) => element("th", { scope: "col", class: "number" }, name(title))),
    cell("kept", true), ...letters.map((letter) => cell(WORDS[letter])));
}

function bodyRow(rounds, row, letters) {
  const members = (letter) => rounds.members.filter((_, member) => row.cells[member] === letter);
  const cell = (label, content, isNumber = false) =>
    element("td", { "data-label": label, class: isNumber ? "number" : null }, content);
  const names = (letter) => {
    const listed = members(letter).flatMap((member, i) => (i ? [", ", name(member)] : [name(member)]));
    return listed.length ? element("span", {}, listed) : null;
  };
  const asked = rounds.members.length - members(VERDICT.NOT_A_MEMBER).length;
  return element("tr", {},
    element("th", { scope: "row", class: "number" },
      element("a", { href: `/rounds/${row.number}` }, count(row.number))),
    cell("closed", clock(row.closedAt)),
    cell("took", seconds(row.tookS), true),
    cell("proven", row.isProven ? "proven" : "not yet"),
    ...rounds.metrics.map((title, i) => cell(title, metric(title, row.metrics[i]), true)),
    cell("kept", `${members(VERDICT.KEPT).length} of ${asked}`, true),
    ...letters.map((letter) => cell(WORDS[letter], names(letter))),
  );
}
