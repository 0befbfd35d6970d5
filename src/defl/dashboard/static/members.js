// The page /members: each member's link, traffic, recent rounds, trust, trouble and evidence.

import { element, name, svg } from "./dom.js";
import { bytes, count, milliseconds, percent, seconds } from "./format.js";
import { healthPanel } from "./health.js";
import { linkIcon } from "./links.js";
import { markIcon, WORDS } from "./marks.js";
import { refresh, refreshList } from "./refresh.js";
import { VERDICT } from "./store.js";

const RECENT = 20;
const SORTS = [
  ["federation", "federation's order", () => 0],
  ["trouble", "trouble first", (a, b) => troubleOf(b) - troubleOf(a)],
  ["name", "name", (a, b) => a.name.localeCompare(b.name, "en")],
];

export function mount(root, context) {
  const health = element("div");
  const hint = element("span", { class: "hint" });
  const body = element("tbody");
  const sort = element("select", { "aria-label": "sort", "data-sort": true, onchange: () => paint() },
    SORTS.map(([value, words]) => element("option", { value, selected: value === context.query.get("sort") }, `sort: ${words}`)));
  const refused = element("div");
  root.append(
    element("div", { class: "columns" }, health,
      element("section", { class: "panel", "aria-labelledby": "members" },
        element("div", { class: "panel-head" }, element("h2", { id: "members" }, "Members"), hint,
          element("span", { class: "actions" }, sort)),
        element("div", { class: "scroll" }, element("table", { class: "data members", "data-members": true },
          element("thead", {}, element("tr", {},
            heading("member"), heading("link"), heading("round trip", "number"),
            heading(["sent to", element("br"), "received from"], "number"),
            heading(`last ${RECENT} rounds`), heading("trust", "number"),
            heading("trouble and evidence"))),
          body)),
        legend()),
      element("section", { class: "panel span-6" },
        element("div", { class: "panel-head" }, element("h2", {}, "How to read trust")),
        element("p", {}, "How much a member's update counts because of past rounds: 100 % unless its changes opposed " +
          "the others' in sum, 0 % if they did so strongly. It recovers by itself, half of what was held against it " +
          "within 34 rounds. A member with other data than the rest may have less trust too: a reason to ask, not a proof.")),
      element("section", { class: "panel span-6" },
        element("div", { class: "panel-head" }, element("h2", {}, "Refused messages")), refused)));
  const healthOf = healthPanel(health);
  let latest = null;

  function paint() {
    const [overview, rounds] = latest;
    const order = SORTS.find(([value]) => value === sort.value)[2];
    refreshList(body, [...overview.members].sort(order), memberRow, (row, member) =>
      fillRow(row, member, recentOf(member.name, rounds)));
  }
  function update(overview, rounds) {
    latest = [overview, rounds];
    healthOf.update(overview.members_health);
    refresh(hint, [overview.n, overview.f, overview.quorum], () =>
      `${overview.n} members; up to f = ${overview.f} may lie, ${overview.quorum} are a quorum`);
    paint();
    const counted = overview.members.filter((member) => member.refused > 0);
    refresh(refused, counted.map((member) => [member.name, member.refused]), () => refusedOf(counted));
  }

  return { update, unmount() {} };
}

const heading = (words, kind = null, colspan = null) =>
  element("th", { scope: "col", class: kind, colspan }, ...[words].flat());

const memberRow = () => element("tr", {}, ["member", "link", "round-trip", "traffic", "recent", "trust", "trouble"]
  .map((part) => element("td", { class: ["round-trip", "traffic", "trust"].includes(part) ? `number ${part}` : part })));

function fillRow(row, member, recent) {
  row.dataset.member = member.name;
  row.dataset.link = member.link;
  const [who, link, trip, traffic, past, trust, trouble] = row.children;
  refresh(who, [member.name, member.address], () => [
    element("strong", {}, name(member.name)), element("span", { class: "second", title: member.address }, name(member.address))]);
  refresh(link, [member.link, member.away_s, member.last_round, member.route], () => linkOf(member));
  row.dataset.trouble = member.trouble || member.evidence.length ? "yes" : "none";
  refresh(trip, member.round_trip_ms, () => element("span", {}, milliseconds(member.round_trip_ms)));
  trip.classList.toggle("unknown", member.round_trip_ms === null);
  refresh(traffic, [member.sent_bytes, member.received_bytes], () => [
    bytes(member.sent_bytes), element("span", { class: "second" }, bytes(member.received_bytes))]);
  refresh(past, [recent, member.summary], () => [squares(recent), element("span", { class: "second" }, name(member.summary))]);
  refresh(trust, member.trust, () => trustWords(member.trust));
  refresh(trouble, [member.trouble, member.evidence], () => troubleWords(member));
}

function linkOf(member) {
  const line = element("span", { class: "with-icon" }, linkIcon(member.link), name(member.link));
  const more = [];
  if (member.away_s !== null && !member.connected) more.push(`for ${seconds(member.away_s)}`);
  if (member.last_round !== null && member.link === "away") more.push(`last seen in round ${count(member.last_round)}`);
  if (member.connected && member.route && member.route !== "direct") more.push(member.route);
  return [line, more.length ? element("span", { class: "second" }, name(more.join("; "))) : null].filter(Boolean);
}

// Letters of the member's newest rounds, oldest first.
function recentOf(member, rounds) {
  const place = rounds.members.indexOf(member);
  return rounds.numbers.slice(-RECENT).map((number) => rounds.cell(place, number)).join("");
}

function squares(letters) {
  const tally = [...new Set(letters)].map((letter) => `${[...letters].filter((each) => each === letter).length} ${WORDS[letter]}`);
  const icons = [...letters].map((letter, place) => {
    const icon = markIcon(letter, 9);
    icon.setAttribute("x", place * 11);
    return icon;
  });
  return svg("svg", { class: "recent-squares", width: RECENT * 11 - 2, height: 9, viewBox: `0 0 ${RECENT * 11 - 2} 9`,
                      role: "img", "aria-label": `newest ${letters.length} rounds: ${tally.join(", ")}`, "data-cells": letters }, icons);
}

function trustWords(trust) {
  if (trust !== 0) return [percent(trust)];
  return [percent(trust), element("span", { class: "second opposes" }, "opposes the others")];
}

function troubleWords(member) {
  if (!member.trouble && !member.evidence.length) return [element("span", { class: "muted" }, "none")];
  return [
    ...(member.trouble ? [name(member.trouble), " "] : []),
    ...member.evidence.flatMap((piece) => [
      element("span", { class: "evidence", "data-evidence": true }, "Evidence: ", name(piece.text), ". ",
        piece.href ? element("a", { href: piece.href, download: true }, `↓ ${piece.href.split("/").pop()}`) : null), " "]),
  ];
}

const troubleOf = (member) =>
  8 * member.evidence.length + 4 * (member.link === "away") + 2 * (member.trust === 0) + (member.trouble !== "") +
  (member.judged ? member.left_out / member.judged : 0);

function refusedOf(members) {
  const rule = "A message that breaks the protocol is counted here per member and changes nothing else.";
  if (!members.length) return [element("p", {}, `None. ${rule}`)];
  return [element("dl", { class: "facts" }, members.flatMap((member) => [
    element("dt", {}, name(member.name)), element("dd", {}, count(member.refused))])), element("p", { class: "muted" }, rule)];
}

const legend = () => element("ul", { class: "legend" },
  [VERDICT.KEPT, VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE, VERDICT.NOT_A_MEMBER].map((letter) =>
    element("li", {}, markIcon(letter), WORDS[letter])));
