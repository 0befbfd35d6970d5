// What each shape of the strip and of the curve means.

import { element, svg } from "./dom.js";
import { AWAITED, WORDS, markIcon } from "./marks.js";
import { VERDICT } from "./store.js";
import { icon } from "./strip_links.js";

export function legend() {
  const root = element("ul", { class: "legend", "aria-label": "Legend" });
  let whole = null;
  return {
    root,
    update(overview) {
      if (whole === overview.whole) return;
      whole = overview.whole;
      root.replaceChildren(...entries(whole));
    },
  };
}

function entries(isWhole) {
  const verdicts = [VERDICT.KEPT, VERDICT.LEFT_OUT, VERDICT.LATE, VERDICT.NO_UPDATE, VERDICT.NOT_A_MEMBER];
  const entry = (shape, words) => element("li", {}, shape, words);
  const line = (dash, colour) =>
    svg("svg", { width: 18, height: 12, viewBox: "0 0 18 12", "aria-hidden": "true" },
        svg("path", { d: "M0 6h18", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash }));
  const back = svg("svg", { width: 10, height: 10, viewBox: "0 0 10 10", "aria-hidden": "true" },
                   svg("path", { d: "M1.5 1.5h7v7h-7Z", fill: "none", stroke: "var(--text)", "stroke-width": 1.6 }));
  const newlyOut = markIcon(VERDICT.LEFT_OUT, 11);
  const apart = (item) => (item.classList.add("apart"), item); // begins another group
  return [
    ...verdicts.map((letter) => entry(markIcon(letter), WORDS[letter])),
    apart(entry(markIcon(VERDICT.PENDING), WORDS[VERDICT.PENDING])),
    entry(markIcon(AWAITED), WORDS[AWAITED]),
    apart(entry(line("none", "var(--good)"), "proven")),
    entry(line("2 2", "var(--muted)"), "not proven yet"),
    element("li", {}, "on the curve: ", newlyOut, "newly left out", back, "let back in"),
    ...(isWhole ? [apart(entry(icon("up"), "both connections up")), entry(icon("off"), "down")] : []),
  ];
}
