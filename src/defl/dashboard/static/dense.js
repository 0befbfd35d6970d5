// "Whose update counted" for many members: a histogram of all rounds with a movable window, the
// window's rounds with trouble first, every member at once, a search, and the same as a table.

import { allMembers, sentence } from "./dense_all.js";
import { denseCurve } from "./dense_curve.js";
import { troubleRows } from "./dense_rows.js";
import { element } from "./dom.js";
import { count } from "./format.js";
import { histogram } from "./histogram.js";
import { inspector } from "./inspector.js";
import { markIcon, WORDS } from "./marks.js";
import { onPaletteChange, palette } from "./palette.js";
import { VERDICT } from "./store.js";
import * as table from "./table.js";
import { Tally } from "./tally.js";

const COLUMN = 12.75; // pixels per round, until the viewer widens the window
const COLUMN_MIN = 4;
const WINDOW_MIN = 10; // rounds

export function mount(root, context) {
  const tally = new Tally();
  const rows = troubleRows();
  const all = allMembers();
  const bars = histogram({ choose });
  const curve = denseCurve(() => draw());
  const found = inspector(context, () => document.activeElement === stage);
  const hint = element("span", { class: "hint" });
  const search = element("input", { type: "search", class: "field", "aria-label": "Find a member",
    placeholder: "Find a member", maxlength: 64, oninput: () => draw(), onkeydown: leaveSearch });
  const link = (text, view) =>
    element("button", { class: "quiet", type: "button", onclick: () => show(view) }, text);
  const links = { trouble: link("Trouble first", "trouble"), all: link("All", "all"), table: link("As a table", "table") };
  const stage = element("div", { class: "dense-keys", tabindex: 0, role: "application",
    "aria-label": "Whose update counted: members and rounds", "aria-describedby": "dense-help" });
  const help = element("p", { class: "visually-hidden", id: "dense-help" },
    "Arrow keys move between members and rounds, Enter opens the round, T shows the table, ",
    "Shift with the left and right arrows moves the window, with up and down widens or narrows it.");
  const spoken = element("p", { class: "visually-hidden", "aria-live": "polite" });
  const empty = element("p", { class: "muted", hidden: true }, "No round has closed yet.");
  const picture = element("div", { class: "dense-grid" });
  const key = element("p", { class: "hint dense-key" });
  const everyone = element("div", { class: "dense-grid dense-two", hidden: true }, key);
  const tableRoot = element("div", { hidden: true });
  const actions = element("div", { class: "actions" }, links.trouble, links.all, search, links.table);
  const shapes = legend();
  picture.append(...bars.cells, ...rows.cells, ...curve.cells);
  everyone.append(...all.cells);
  stage.append(picture, everyone);
  root.append(
    element("section", { class: "panel dense" },
      element("div", { class: "panel-head" }, element("h2", {}, "Whose update counted"), hint,
        actions),
      empty, help, stage, spoken, tableRoot, found.root, shapes),
  );

  let rounds = null;
  let overview = null;
  let view = "trouble";
  let chosen = null; // { first, last }, or null: not chosen yet
  let follows = true; // the newest round
  let span = null; // rounds, if the viewer chose how many
  let cursor = null;
  let tablePage = null;
  let waiting = false; // a drawing is due in the next frame

  const current = () => (view === "all" ? all : rows);
  const isWanted = () => {
    const text = search.value.trim().toLowerCase();
    return text === "" ? null : (title) => title.toLowerCase().includes(text);
  };

  function show(next) {
    view = next;
    for (const [key, button] of Object.entries(links)) button.setAttribute("aria-pressed", key === view);
    showParts();
    if (view === "table") links.table.focus();
    if (view === "table") {
      tablePage ??= table.mount(tableRoot, context);
      if (rounds) tablePage.update(overview, rounds, chosen);
    } else if (tablePage !== null) {
      tablePage.unmount();
      tablePage = null;
      tableRoot.replaceChildren();
    }
    draw();
  }

  function showParts() {
    const isEmpty = tally.length === 0;
    empty.hidden = !isEmpty;
    actions.hidden = shapes.hidden = isEmpty;
    picture.hidden = view !== "trouble";
    everyone.hidden = view !== "all";
    stage.hidden = found.root.hidden = isEmpty || view === "table";
    tableRoot.hidden = isEmpty || view !== "table";
  }

  // The window as asked for, moved to where there are rounds and kept to sizes that can be drawn.
  function choose(first, last, held = "body") {
    const most = Math.max(WINDOW_MIN, Math.floor(rows.stage.clientWidth / COLUMN_MIN));
    const least = Math.min(WINDOW_MIN, tally.length);
    const length = Math.min(Math.max(last - first + 1, least), Math.min(most, tally.length));
    if (held !== "body") span = length;
    const start = held === "first" ? last - length + 1 : first;
    const from = Math.max(tally.first, Math.min(start, tally.last - length + 1));
    chosen = { first: from, last: from + length - 1 };
    follows = chosen.last === tally.last;
    draw();
  }

  function settle() {
    if (!tally.length) return;
    const wanted = span ?? Math.max(WINDOW_MIN, Math.floor(rows.stage.clientWidth / COLUMN));
    const length = Math.min(wanted, tally.length);
    if (chosen === null || follows) chosen = { first: tally.last - length + 1, last: tally.last };
    else {
      const first = Math.max(tally.first, Math.min(chosen.first, tally.last - length + 1));
      chosen = { first, last: first + length - 1 };
    }
  }

  // At most once per frame, however often it is asked for.
  function draw() {
    if (waiting || !rounds) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      paint();
    });
  }

  function paint() {
    const started = performance.now();
    settle();
    const colours = palette();
    const members = rounds.members;
    links.all.textContent = `All ${count(members.length)}`;
    hint.textContent = `${count(members.length)} members, ${tally.length ? count(tally.length) : "no"} rounds` +
      (view === "trouble" && tally.length ? "; most trouble first in the chosen window" : "");
    let cells = 0;
    if (chosen === null || view === "table") return;
    if (view === "all") {
      cells = all.draw(tally, members, isWanted(), cursor, colours);
      key.textContent = sentence(all.step);
    } else {
      bars.draw(tally, chosen, rounds.marks, colours);
      cells = rows.draw(tally, members, chosen, isWanted(), cursor, colours);
      curve.draw(rounds, chosen, rows.stage.clientWidth);
    }
    if (cursor === null && current().order.length) select(current().order[0], chosen.last);
    // For tests/browser and the developer tools: how much work a change costs.
    performance.clearMeasures("dense");
    performance.measure("dense", { start: started, detail: { cells, counted: tally.counted } });
  }

  function select(member, number) {
    const told = current().tell(tally, member, number);
    if (cursor?.member === member && cursor.number === told) return;
    cursor = { member, number: told };
    inspect();
    draw();
  }

  function inspect() {
    const { member, number } = cursor;
    const row = rounds.round(number);
    const event = rounds.marks.filter(([at]) => at === number).map(([, text]) => text).join(", ");
    found.show({ member: rounds.members[member], number, letter: rounds.cell(member, number), isOpen: false,
      event, version: row ? `${row.cells} ${row.isProven}` : "" }, null);
  }

  function pointed(event) {
    const box = current().stage.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return x < 0 || y < 0 || x >= box.width ? null : current().at(x, y);
  }

  const open = (number) => context.go(`/rounds/${number}`);

  function leaveSearch(event) {
    if (event.key !== "Escape") return;
    search.value = "";
    draw();
  }

  const move = (down, right) => {
    const { order, step } = current();
    if (!order.length) return;
    if (cursor === null || !order.includes(cursor.member)) {
      select(order[0], chosen.last);
      return;
    }
    const row = Math.max(0, Math.min(order.length - 1, order.indexOf(cursor.member) + down));
    goTo(order[row], cursor.number + right * step);
  };
  const goTo = (member, wanted) => {
    const number = Math.max(tally.first, Math.min(tally.last, wanted));
    const by = number < chosen.first ? number - chosen.first : Math.max(0, number - chosen.last);
    if (by && view === "trouble") choose(chosen.first + by, chosen.last + by);
    select(member, number);
  };
  const shift = (by) => choose(chosen.first + by, chosen.last + by);
  const widen = (by) => choose(chosen.last - (span ?? chosen.last - chosen.first + 1) - by + 1, chosen.last, "first");
  const wide = () => chosen.last - chosen.first + 1;
  const member = () => cursor?.member ?? current().order[0];

  const KEYS = {
    ArrowLeft: () => move(0, -1),
    ArrowRight: () => move(0, 1),
    ArrowUp: () => move(-1, 0),
    ArrowDown: () => move(1, 0),
    Home: () => goTo(member(), tally.first),
    End: () => goTo(member(), tally.last),
    PageUp: () => goTo(member(), (cursor?.number ?? chosen.last) - wide()),
    PageDown: () => goTo(member(), (cursor?.number ?? chosen.last) + wide()),
    Enter: () => cursor && open(cursor.number),
    " ": () => cursor && open(cursor.number),
    t: () => show("table"),
    T: () => show("table"),
  };
  const SHIFTED = {
    ArrowLeft: () => shift(-Math.ceil(wide() / 4)),
    ArrowRight: () => shift(Math.ceil(wide() / 4)),
    ArrowUp: () => widen(10),
    ArrowDown: () => widen(-10),
  };
  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== stage || !chosen) return;
    const act = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
    if (cursor !== null)
      spoken.textContent = `${rounds.members[cursor.member]}, round ${cursor.number}, ${WORDS[rounds.cell(cursor.member, cursor.number)]}`;
  });
  for (const { stage: pointedAt } of [rows, all]) {
    pointedAt.addEventListener("pointermove", (event) => {
      const place = event.pointerType === "mouse" ? pointed(event) : null;
      if (place) select(place.member, place.number);
    });
    pointedAt.addEventListener("click", (event) => {
      const place = pointed(event);
      if (!place) return;
      select(place.member, place.number);
      stage.focus({ preventScroll: true });
      // A finger cannot hover: it inspects, and the inspector's link opens.
      if (event.pointerType !== "touch" && event.pointerType !== "pen") open(place.number);
    });
  }
  const leaveTable = (event) => {
    const isOther = event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey;
    if (view !== "table" || isOther || event.key.toLowerCase() !== "t" || event.target.matches("input")) return;
    event.preventDefault();
    show("trouble");
    stage.focus();
  };
  root.addEventListener("keydown", leaveTable);
  const resized = new ResizeObserver(() => draw());
  resized.observe(root);
  const stopPalette = onPaletteChange(draw);
  show(view);

  return {
    update(present, fetched) {
      overview = present;
      rounds = fetched;
      const changed = tally.take(rounds);
      all.changed(changed);
      showParts();
      if (view === "table") tablePage.update(overview, rounds, chosen);
      if (changed.length || chosen === null) draw();
      if (cursor !== null) inspect();
    },
    unmount() {
      resized.disconnect();
      stopPalette();
      curve.unmount();
      found.unmount();
    },
  };
}

function legend() {
  const mark = (letter) => element("li", {}, markIcon(letter), WORDS[letter]);
  const line = (shape, text) => element("li", {}, element("i", { class: `proof ${shape}` }), text);
  return element("ul", { class: "legend" },
    ...[VERDICT.KEPT, VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE, VERDICT.NOT_A_MEMBER].map(mark),
    line("solid", "proven"), line("dotted", "not proven yet"));
}
