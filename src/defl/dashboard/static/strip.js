// "Whose update counted": members by rounds, the metric and the round time on the same axis.
//
// `picture` is what the parts draw: { layout, names, columns (round numbers), titles, open (the open
// round's number or null), marks, metric, changed, timeMax, letter(row, number), isProven(number),
// tookS(number), value(number) }.

import { metricCurve } from "./curves.js";
import { element } from "./dom.js";
import { load } from "./fetching.js";
import { inspector } from "./inspector.js";
import { onPaletteChange, palette } from "./palette.js";
import { VERDICT } from "./store.js";
import { paintStrip } from "./strip_canvas.js";
import { captions } from "./strip_captions.js";
import { stripGrid } from "./strip_grid.js";
import { stripHead } from "./strip_head.js";
import { changes, columnTitles, layoutOf, openLetter, windowOf } from "./strip_layout.js";
import { legend } from "./strip_legend.js";

// What somebody chose stays while they look at another page.
let last = null; // newest round in the window; null: follow the newest of all
let chosen = null; // { member, number }; null: the newest trouble

export function mount(root, context) {
  const canvas = element("canvas", { class: "strip-canvas", "aria-hidden": "true" });
  const band = element("div", { class: "strip-band", "aria-hidden": "true" });
  const curve = metricCurve();
  const written = captions();
  const inspected = inspector(context, () => document.activeElement === grid.root);
  const head = stripHead({ metric: () => draw(), table: () => showTable(!isTable), move });
  const grid = stripGrid({ inspect, open, key });
  const shapes = legend();
  const figure = element(
    "div", { class: "strip-figure" }, band, canvas, curve.root, written.root, grid.root, inspected.root,
  );
  const tableRoot = element("div", { class: "strip-table", hidden: true });
  const empty = element("p", { class: "muted", hidden: true }, "No round has closed yet.");
  root.append(element("section", { class: "panel strip-panel", "aria-label": "Whose update counted", onkeydown: leaveTable },
                      head.root, empty, figure, tableRoot, shapes.root));

  let overview = null;
  let rounds = null;
  let picture = null;
  let eventsWritten = new Set(); // rounds whose event the picture has room for
  let width = 0;
  let isTable = false;
  let table = null; // what table.js mounts, once it is wanted

  const sizes = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === 0 || now === width) return;
    width = now;
    draw();
  });
  sizes.observe(head.root);
  const endPalette = onPaletteChange(() => {
    draw();
    curve.redraw();
  });

  function draw() {
    if (overview === null || width === 0) return;
    picture = pictureOf();
    showParts();
    if (picture.columns.length === 0) return;
    const { label, pitch, size, slots, top, bottom, gap, axis, y } = picture.layout;
    const lengths = { pitch, size, label, top, "rows-end": bottom, end: y.end, time: y.time, curve: y.curve,
                      columns: slots * pitch, "curve-left": label - gap / 2 - axis };
    for (const [token, length] of Object.entries(lengths))
      figure.style.setProperty(`--${token}`, `${length}px`);
    figure.classList.toggle("compact", picture.layout.isCompact);
    grid.update(picture, overview);
    eventsWritten = paintStrip(canvas, picture, palette());
    curve.update(picture);
    written.update(picture, rounds);
    shapes.update(overview);
    return showChosen();
  }

  function showParts() {
    const isEmpty = picture.columns.length === 0;
    if (isEmpty) isTable = false;
    head.update(overview, rounds, picture);
    head.showTable(isTable);
    empty.hidden = !isEmpty;
    figure.hidden = isTable || isEmpty;
    tableRoot.hidden = !isTable;
    shapes.root.hidden = isEmpty;
  }

  function pictureOf() {
    const members = new Map(overview.members.map((member) => [member.name, member]));
    const names = rounds.members.length ? rounds.members : overview.members.map((member) => member.name);
    const layout = layoutOf(width, names.length, longest(names), overview.rounds_total);
    const round = overview.open_round;
    const isOpen = round !== null && rounds.round(round.number) === undefined;
    const open = isOpen ? round.number : null;
    const shown = windowOf(rounds.numbers, open, layout.slots, last);
    const metric = head.metric(rounds);
    const place = rounds.metrics.indexOf(metric);
    const tookS = (number) => (number === open ? round.open_s : rounds.round(number)?.tookS ?? null);
    return {
      layout, names, open, metric,
      columns: shown.columns, all: shown.all, hasOlder: shown.hasOlder, hasNewer: shown.hasNewer,
      titles: columnTitles(shown.columns, open, layout.pitch),
      marks: rounds.marks,
      changed: changes(rounds, shown.columns),
      timeMax: Math.max(0, ...shown.columns.map((number) => tookS(number) ?? 0)),
      letter: (row, number) =>
        number === open
          ? openLetter(names[row], members.get(names[row]), round)
          : rounds.cell(row, number),
      isProven: (number) => rounds.round(number)?.isProven ?? false,
      tookS,
      value: (number) => rounds.round(number)?.metrics[place] ?? null,
    };
  }

  function showChosen() {
    const { columns, all, names, open, letter, layout } = picture;
    if (chosen && !(names.includes(chosen.member) && all.includes(chosen.number))) chosen = null;
    const { member, number } = chosen ?? newestTrouble(picture);
    const row = names.indexOf(member);
    const place = columns.indexOf(number);
    grid.activate(row, place);
    band.hidden = place < 0;
    band.style.transform = `translateX(${layout.label + place * layout.pitch - layout.gap / 2}px)`;
    const round = rounds.round(number);
    const events = rounds.marks.filter(([at]) => at === number).map(([, text]) => text);
    return inspected.show(
      {
        member, number, letter: letter(row, number), isOpen: number === open,
        event: eventsWritten.has(number) ? "" : events.join(", "),
        version: round ? `${round.cells} ${round.isProven}` : "",
      },
      overview.open_round,
    );
  }

  function inspect(row, number) {
    chosen = { member: picture.names[row], number };
    showChosen();
  }

  function open(number) {
    if (number !== picture.open) context.go(`/rounds/${number}`);
  }

  // Moves the window by `step` rounds; the newest window follows.
  function move(step) {
    const { all, columns } = picture;
    const place = all.indexOf(columns.at(-1)) + step;
    last = place >= all.length - 1 ? null : all[Math.max(0, place)];
    draw();
  }

  function key(event) {
    if (picture === null || event.metaKey || event.ctrlKey || event.altKey) return;
    const { all, names, layout } = picture;
    const { member, number } = chosen ?? newestTrouble(picture);
    const row = names.indexOf(member);
    const place = all.indexOf(number);
    const page = layout.slots - 1;
    const act = {
      ArrowLeft: () => choose(row, place - 1), ArrowRight: () => choose(row, place + 1),
      ArrowUp: () => choose(row - 1, place), ArrowDown: () => choose(row + 1, place),
      Home: () => choose(row, 0), End: () => choose(row, all.length - 1),
      PageUp: () => choose(row, place - page), PageDown: () => choose(row, place + page),
      Enter: () => open(number), " ": () => open(number),
      t: () => showTable(true), T: () => showTable(true),
    }[event.key];
    if (act === undefined || all.length === 0) return;
    event.preventDefault();
    act();
  }

  // Chooses a square, if need be the nearest one, and moves the window to it.
  function choose(row, place) {
    const { all, columns, names } = picture;
    const within = (number, count) => Math.min(count - 1, Math.max(0, number));
    const target = within(place, all.length);
    chosen = { member: names[within(row, names.length)], number: all[target] };
    const first = all.indexOf(columns[0]);
    const newest = first + columns.length - 1;
    if (target < first) move(target - first);
    else if (target > newest) move(target - newest);
    else showChosen();
  }

  function showTable(isWanted) {
    isTable = isWanted;
    showParts();
    if (isTable) {
      head.focusTable();
      updateTable().catch(() => {}); // the next answer tries again and says that there was none
    } else {
      draw();
      grid.root.focus({ preventScroll: true });
    }
  }

  // T also leads back, from the button and from anywhere in the table.
  function leaveTable(event) {
    const isOther = event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey;
    if (!isTable || isOther || event.key.toLowerCase() !== "t" || event.target.matches("input, select")) return;
    event.preventDefault();
    showTable(false);
  }

  async function updateTable() {
    const { mount: mountTable } = await load("table");
    table ??= mountTable(tableRoot, context);
    const { columns } = picture;
    table.update(overview, rounds, { first: columns[0] ?? 0, last: columns.at(-1) ?? 0 });
  }

  return {
    async update(newOverview, newRounds) {
      overview = newOverview;
      rounds = newRounds;
      if (width === 0) width = Math.floor(head.root.clientWidth);
      await draw();
      if (isTable) await updateTable();
    },
    unmount() {
      sizes.disconnect();
      endPalette();
      curve.unmount();
      inspected.unmount();
      table?.unmount();
    },
  };
}

// What the inspector shows at first: of the newest closed round, who was left out, else late.
function newestTrouble({ columns, names, open, letter }) {
  const closed = columns.filter((number) => number !== open);
  const number = closed.at(-1) ?? columns[0];
  const letters = names.map((_, row) => letter(row, number));
  const worst = [VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE].find((one) => letters.includes(one));
  return { member: names[Math.max(0, letters.indexOf(worst))], number };
}

const ruler = document.createElement("canvas").getContext("2d");

function longest(names) {
  ruler.font = `600 12px ${palette().sans}`;
  return Math.max(0, ...names.map((name) => ruler.measureText(name).width));
}
