// The rows of a round's timeline and of the table behind it, from an open or from a closed round.

import { exactSeconds, NONE, seconds } from "./format.js";
import { AWAITED, WORDS } from "./marks.js";
import { VERDICT } from "./store.js";

export const OWN_ROW = "own";
export const IN_ROW = "in";
export const AWAITED_ROW = "awaited";
export const LATE_ROW = "late";
export const NONE_ROW = "none";
export const OTHERS_ROW = "others";

const ROWS_MAX = 24; // more members than this: those without anything special share one row
const SPECIAL_MAX = 20;
// Waiting less than this for the last member is not worth a mark.
const WAITED_S = 0.5;
const WAITED_SHARE = 0.2; // of the round
const SHORT = { aggregate: "agg." };

// `open`: an OpenRoundView; `order`: all members' names in the federation's order.
export function openTimeline(open, order) {
  const rows = order.filter((member) => member !== open.seen_from).map((member) => {
    const cameS = open.arrivals[member];
    if (open.awaited.includes(member))
      return row(member, AWAITED_ROW, open.open_s, { note: "awaited", short: "awaited", isWaitedFor: true, mark: AWAITED });
    if (cameS === undefined) return null; // not a member of this round
    return arrived(member, cameS, null, "in at ");
  });
  return finish({
    seenFrom: open.seen_from, phases: open.phases, rows, now: open.open_s, closedS: null,
    deadlineS: open.closes_s,
    deadlineText: `${open.closes_text || "closes"}, ${seconds(open.closes_s)}`,
    deadlineShort: `closes, ${seconds(open.closes_s)}`,
    deadlineRow: "closes at the latest",
    ownNote: "",
    summary: `Round ${open.number}, now: ${open.sentence}`,
  });
}

// `view`: a RoundView.
export function closedTimeline(view) {
  const rows = view.members.filter((share) => share.member !== view.seen_from).map((share) => {
    const { member, verdict, came_s: cameS, waited_s: waitedS } = share;
    if (verdict === VERDICT.NOT_A_MEMBER) return null;
    if (verdict === VERDICT.LATE)
      return row(member, LATE_ROW, view.took_s, { note: share.came || WORDS[verdict], short: "late",
                                                  isWaitedFor: true, waitedS, mark: VERDICT.LATE });
    if (verdict === VERDICT.NO_UPDATE)
      return row(member, NONE_ROW, null, { note: "no update", short: "no update" });
    if (verdict === VERDICT.UNKNOWN)
      return row(member, NONE_ROW, null, { note: WORDS[verdict], short: NONE });
    const isLong = waitedS >= Math.max(WAITED_S, WAITED_SHARE * (view.took_s ?? 0));
    return arrived(member, cameS, isLong ? waitedS : null, "in ");
  });
  const ready = Math.max(0, ...view.phases.filter((phase) => phase.phase === "aggregate").map((phase) => phase.end_s ?? 0));
  const bound = view.closes_s;
  return finish({
    seenFrom: view.seen_from, phases: view.phases, rows, now: null, closedS: view.took_s,
    deadlineS: bound,
    deadlineText: deadlineWords(view, rows.filter((each) => each !== null)),
    deadlineShort: seconds(bound),
    deadlineRow: `${waitedWords(view)} until`,
    ownNote: ready ? `model ready ${exactSeconds(ready)}` : "",
    summary: `How round ${view.number} went, in seconds since it opened, seen from ${view.seen_from}. ${view.sentence}`,
  });
}

// The deadline is when this node stopped waiting, unless the round closed before.
const waitedWords = ({ seen_from: node, took_s: tookS, closes_s: bound }) =>
  `${isolated(node)} ${tookS !== null && bound > tookS ? "would have waited" : "waited"}`;

function deadlineWords(view, rows) {
  const bound = view.closes_s;
  const named = (isMeant) => rows.filter(isMeant).map((each) => each.name);
  const late = named((each) => each.kind === LATE_ROW);
  const waitedFor = named((each) => each.kind === IN_ROW && each.waitedS);
  if (late.length) return `${waitedWords(view)} for ${listed(late)} until ${seconds(bound)}`;
  if (waitedFor.length) return `${seconds(bound)}: would have closed without ${listed(waitedFor)}`;
  return `${waitedWords(view)} until ${seconds(bound)}`;
}

// Isolated, as <bdi> does it in HTML: a name may turn the text around it.
const isolated = (text) => `\u2068${text}\u2069`;

const listed = (names) => (names.length < 3 ? names.map(isolated).join(" and ") : `${names.length} members`);

const row = (member, kind, endS, more) =>
  ({ member, name: member, kind, endS, cameS: null, waitedS: null, isWaitedFor: false, ...more });

function arrived(member, cameS, waitedS, words) {
  if (cameS === null) return row(member, IN_ROW, null, { note: "in; when is not known", short: "in" });
  const came = exactSeconds(cameS);
  const waited = waitedS ? `, waited for ${exactSeconds(waitedS)}` : "";
  return row(member, IN_ROW, cameS, { cameS, waitedS, note: `${words}${came}${waited}`, short: came, isWaitedFor: Boolean(waitedS) });
}

function finish(model) {
  const phases = model.phases.map((phase) => {
    const lasted = (phase.end_s ?? model.now ?? phase.start_s) - phase.start_s;
    return { ...phase, words: [`${phase.phase} ${exactSeconds(lasted)}`, phase.phase, SHORT[phase.phase] ?? phase.phase] };
  });
  const own = row(model.seenFrom, OWN_ROW, null, { isBold: true, phases, note: model.ownNote, short: "" });
  const rows = model.rows.filter((each) => each !== null);
  const hasTimes = phases.length > 0 || rows.some((each) => each.endS !== null);
  return { ...model, hasTimes, phases, all: [own, ...rows], rows: [own, ...gathered(rows)] };
}

// With many members: those who were waited for or did not come, then all others in one row.
function gathered(rows) {
  if (rows.length < ROWS_MAX) return rows;
  const special = rows.filter((each) => each.kind !== IN_ROW || each.isWaitedFor || each.cameS === null);
  const shown = special.slice(0, SPECIAL_MAX);
  const ticks = rows.filter((each) => !shown.includes(each) && each.cameS !== null).map((each) => each.cameS);
  if (!ticks.length) return shown;
  const range = `${exactSeconds(Math.min(...ticks))} to ${exactSeconds(Math.max(...ticks))}`;
  const hidden = special.length - shown.length;
  const name = `${rows.length - shown.length} others`;
  const note = hidden ? `in ${range}; ${hidden} not` : `in ${range}`;
  return [...shown, { ...row(null, OTHERS_ROW, Math.max(...ticks), { note }), name, ticks }];
}

export const noteOf = (each) => each.note;

// Header and rows of the table: phases of the node itself, then every member.
export function tableRows(model) {
  const rows = [["what", "from", "until, or came"]];
  for (const phase of model.phases)
    rows.push([`${model.seenFrom}: ${phase.phase}`, exactSeconds(phase.start_s), phase.end_s === null ? "goes on" : exactSeconds(phase.end_s)]);
  for (const each of model.all.slice(1)) rows.push([each.name, "", each.note]);
  if (model.deadlineS !== null) rows.push([model.deadlineRow, "", exactSeconds(model.deadlineS)]);
  return rows;
}
