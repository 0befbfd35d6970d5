// The health panel: an icon whose shape tells the level, one sentence, a badge, notes below.

import { element, name, svg } from "./dom.js";
import { markIcon } from "./marks.js";
import { sentenceParts } from "./sentence.js";
import { VERDICT } from "./store.js";

const LEVELS = new Set(["good", "attention", "danger", "idle"]);

// `update` takes a Health and the MemberViews of view.py; members' names stand out in the notes.
export function healthPanel(root) {
  const icon = element("span", { class: "health-icon" });
  const sentence = element("h1", { class: "health-sentence", "data-health-sentence": true });
  const badge = element("span", { class: "badge", "data-health-badge": true });
  const notes = element("ul", { class: "health-notes" });
  const panel = element("section", { class: "health", "data-health": "", "aria-label": "Health" },
                        icon, sentence, badge, notes);
  root.append(panel);
  let shown = "";
  return {
    update(health, members = []) {
      const key = JSON.stringify([health, members.map((member) => [member.name, member.evidence])]);
      if (key === shown) return;
      shown = key;
      const level = LEVELS.has(health.level) ? health.level : "idle";
      if (panel.dataset.health !== level) {
        panel.dataset.health = level;
        panel.className = `health ${level}`;
        badge.className = `badge ${level}`;
        icon.replaceChildren(levelIcon(level));
      }
      if (sentence.dataset.healthSentence !== health.sentence) {
        sentence.dataset.healthSentence = health.sentence;
        sentence.replaceChildren(...sentenceParts(health.sentence, members, name));
      }
      setText(badge, health.badge);
      badge.hidden = health.badge === "";
      showNotes(notes, health.notes, members);
    },
  };
}

function showNotes(list, notes, members) {
  while (list.children.length > notes.length) list.lastChild.remove();
  notes.forEach((note, place) => {
    const old = list.children[place];
    const parts = noteParts(note, members);
    const shown = note.mark + parts.map((part) => part.textContent ?? part).join("");
    if (old?.dataset.shown === shown) return;
    const mark = note.mark ? markIcon(note.mark) : dot();
    const made = element("li", { "data-shown": shown }, mark, element("span", {}, parts));
    if (old) old.replaceWith(made);
    else list.append(made);
  });
}

// The note's text with members' names in bold, then a link to the evidence against them.
function noteParts(note, members) {
  const parts = sentenceParts(note.text, members, (text) => element("b", {}, name(text)));
  const named = new Set(parts.map((part) => part.textContent));
  const held = note.mark !== VERDICT.LEFT_OUT ? []
    : members.filter((member) => named.has(member.name)).flatMap((member) => member.evidence);
  if (held.length === 0) return parts;
  const words = held.length === 1 ? "1 piece of evidence" : `${held.length} pieces of evidence`;
  const file = held.length === 1 ? held[0].href : null;
  return [...parts, " ", element("a", { href: file ?? "/members", download: file !== null }, words)];
}

// A selection inside an unchanged text stays.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const dot = () =>
  svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" },
      svg("circle", { cx: 6, cy: 6, r: 2, fill: "currentColor" }));

const STROKE = {
  fill: "none", stroke: "currentColor", "stroke-width": 1.8,
  "stroke-linecap": "round", "stroke-linejoin": "round",
};
const path = (d) => svg("path", { ...STROKE, d });
const LEVEL_WORDS = { good: "Good", attention: "Attention", danger: "Danger", idle: "Not running" };
const LEVEL_SHAPES = {
  good: () => [svg("circle", { ...STROKE, cx: 12, cy: 12, r: 9.2 }), path("m7.8 12.3 2.9 2.9 5.5-6")],
  attention: () => [path("M12 3.2 21.8 20.4H2.2Z"), path("M12 9.4v5M12 17.3v.1")],
  danger: () => [
    path("M8.1 2.6h7.8l5.5 5.5v7.8l-5.5 5.5H8.1l-5.5-5.5V8.1Z"),
    path("m8.8 8.8 6.4 6.4m0-6.4-6.4 6.4"),
  ],
  idle: () => [svg("rect", { ...STROKE, x: 4, y: 4, width: 16, height: 16, rx: 2.5 })],
};

// ✓ in a circle, ! in a triangle, × in an octagon, an empty square.
export function levelIcon(level, size = 24) {
  const label = { role: "img", "aria-label": LEVEL_WORDS[level] };
  return svg("svg", { width: size, height: size, viewBox: "0 0 24 24", ...label }, ...LEVEL_SHAPES[level]());
}
