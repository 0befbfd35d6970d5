// The fixed inspector beside the strip: one member in one round, with the rule's own words.

import { element, name } from "./dom.js";
import { seconds } from "./format.js";
import { AWAITED, WORDS, markIcon } from "./marks.js";
import { VERDICT } from "./store.js";

const WAIT_MS = 120; // a pointer that passes over squares fetches nothing
const CACHED_MAX = 200; // rounds
const LINE = 17; // px, as in strip.css

// `isSpoken()`: is the strip moved over by keyboard now, so that what is shown is read out?
export function inspector(context, isSpoken = () => false) {
  const title = element("h3", { class: "inspector-title" });
  const fields = { verdict: null, weight: null, score: null, came: null, event: null };
  const list = element("dl", { class: "inspector-fields" });
  for (const field of Object.keys(fields)) {
    fields[field] = element("dd", { "data-field": field });
    list.append(element("dt", {}, field), fields[field]);
  }
  const words = element("blockquote", { class: "quote inspector-words", "data-field": "words" });
  const spoken = element("p", { class: "visually-hidden", "aria-live": "polite" });
  const room = element("div", { class: "inspector-room" }, words);
  const open = element("a", { href: "/rounds" }, "open");
  const keys = element(
    "p", { class: "inspector-keys" },
    ...["←", "→", "↑", "↓"].map((key) => element("kbd", {}, key)), element("span", {}, "move"),
    element("kbd", { class: "enter" }, "Enter"), open,
  );
  const root = element(
    "aside", { class: "inspector", "aria-label": "The chosen square", "data-inspector": true },
    title, list, room, keys, spoken,
  );
  const cached = new Map(); // key -> RoundView, least recently used first
  let shown = "";
  let timer = null;
  let isFirst = true;

  function write(field, text) {
    const cell = fields[field];
    if (cell.textContent !== text) cell.textContent = text;
    cell.title = text;
    cell.hidden = cell.previousSibling.hidden = text === "";
  }

  function showShare(round, member) {
    const share = round.members.find((candidate) => candidate.member === member);
    write("weight", share ? weightWords(share, round.members) : "");
    write("score", share ? scoreWords(share) : "");
    write("came", share && share.came !== WORDS[share.verdict] ? share.came : "");
    showWords(share?.reason ?? "");
    if (!isSpoken()) return;
    const parts = ["weight", "score", "came"].map((field) => [field, fields[field].textContent]);
    const figures = parts.filter(([, text]) => text).map((part) => part.join(" "));
    spoken.textContent = [...figures, share?.reason ?? ""].join("; ");
  }

  // As many lines as there is room for; the round's page has them all.
  function showWords(text) {
    words.hidden = text === "";
    if (words.textContent !== text) words.textContent = text;
    words.title = text;
    words.style.webkitLineClamp = String(Math.max(1, Math.floor(room.clientHeight / LINE)));
  }

  async function fetchRound(key, number, member) {
    try {
      const round = await context.get(`/api/rounds/${number}`);
      cached.set(key, round);
      if (cached.size > CACHED_MAX) cached.delete(cached.keys().next().value);
      if (shown === `${key} ${member}`) showShare(round, member);
    } catch {
      if (shown === `${key} ${member}`) shown = ""; // asked again with the next answer
    }
  }

  return {
    root,
    // `cell`: { member, number, letter, isOpen, event, version }; `version` changes with the round.
    // Returns a promise if the first round has to be fetched.
    show(cell, openRound) {
      const key = `${cell.number} ${cell.version}`;
      const whole = `${key} ${cell.member}`;
      if (!cell.isOpen && whole === shown) return;
      const isOther = shown !== whole;
      shown = whole;
      if (isOther) {
        const round = element("span", {}, `, round ${cell.number}`);
        title.replaceChildren(markIcon(cell.letter, 14), name(cell.member), round);
        root.dataset.member = cell.member;
        root.dataset.round = String(cell.number);
        open.href = `/rounds/${cell.number}`;
        open.setAttribute("aria-label", `open round ${cell.number}`);
      }
      keys.classList.toggle("still-open", cell.isOpen);
      write("verdict", WORDS[cell.letter]);
      write("event", cell.event);
      clearTimeout(timer);
      if (cell.isOpen) {
        write("weight", "");
        write("score", "");
        write("came", openWords(cell, openRound));
        showWords("");
        return;
      }
      const known = cached.get(key);
      if (known) {
        cached.delete(key);
        cached.set(key, known);
        showShare(known, cell.member);
        return;
      }
      for (const field of ["weight", "score", "came"]) write(field, "…");
      showWords("");
      if (isFirst) {
        isFirst = false;
        return fetchRound(key, cell.number, cell.member);
      }
      timer = setTimeout(() => fetchRound(key, cell.number, cell.member), WAIT_MS);
    },
    unmount() {
      clearTimeout(timer);
    },
  };
}

function weightWords(share, all) {
  if (share.weight === null) return "";
  if (share.weight !== 0) return share.weight.toFixed(3);
  const others = new Set(all.filter(({ weight }) => weight > 0).map(({ weight }) => weight.toFixed(3)));
  return others.size === 1 ? `0 (others ${[...others][0]})` : "0";
}

function scoreWords({ score, times_worst_kept: times }) {
  if (score === null) return "";
  const written = Math.abs(score) >= 0.005 || score === 0 ? score.toFixed(2) : score.toExponential(1);
  return times === null ? written : `${written}, ${times.toFixed(times < 100 ? 1 : 0)} × the worst kept`;
}

function openWords({ member, letter }, openRound) {
  if (letter === AWAITED) return `not yet; open for ${seconds(openRound.open_s)}`;
  if (letter !== VERDICT.PENDING) return "";
  const came = openRound.arrivals[member];
  return came === null || came === undefined ? "in" : `in at ${came.toFixed(1)} s`;
}
