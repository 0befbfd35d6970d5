// The header: brand mark, whose page this is, the tabs, the fingerprint, how old the picture is.

import { element, name, plain, svg } from "./dom.js";

const OF_ONE_NODE = [["/", "Overview"], ["/rounds", "Rounds"], ["/members", "Members"], ["/node", "Node"]];
const OF_ALL_NODES = [["/", "Overview"], ["/rounds", "Rounds"], ["/members", "Members"], ["/nodes", "Nodes"], ["/log", "Log"]];
const LIVE_S = 5; // older than this is not called live

export function header(root) {
  const title = element("strong", {}, "DeFL");
  const subtitle = element("span");
  const tabs = element("nav", { class: "tabs", "aria-label": "Pages" });
  const fingerprint = element("span", { class: "mono", "data-fingerprint": true });
  const fingerprintLine = element(
    "span", { class: "fingerprint-line", hidden: true }, "fingerprint ", fingerprint,
  );
  const age = element("span", { "data-age": true });
  root.append(
    element(
      "div",
      { class: "top-row" },
      element("div", { class: "brand" }, brandMark(), title, subtitle),
      tabs,
      element("div", { class: "top-facts" }, fingerprintLine, age),
    ),
  );

  let whole = null;
  let path = location.pathname;
  const markTab = () => {
    for (const link of tabs.children) {
      const isAbove = link.pathname !== "/" && path.startsWith(`${link.pathname}/`);
      const isHere = isAbove || link.pathname === path;
      if (isHere) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  };
  return {
    update(overview) {
      if (title.textContent !== overview.title) title.replaceChildren(name(overview.title));
      if (subtitle.textContent !== overview.subtitle) subtitle.textContent = overview.subtitle;
      const short = overview.fingerprint.split(" ").slice(0, 4).join(" ");
      if (fingerprint.textContent !== short) fingerprint.textContent = short;
      fingerprintLine.hidden = short === "";
      const badge = overview.health.badge;
      const words = plain(`${badge ? `${badge} · ` : ""}${overview.title} · DeFL`);
      if (document.title !== words) document.title = words;
      if (whole === overview.whole) return;
      whole = overview.whole;
      const pages = whole ? OF_ALL_NODES : OF_ONE_NODE;
      tabs.replaceChildren(...pages.map(([href, words]) => element("a", { href }, words)));
      markTab();
    },
    showTab(newPath) {
      path = newPath;
      markTab();
    },
    // `answeredAt`: when the newest answer came, in ms; null: none has.
    showAge(answeredAt) {
      if (answeredAt === null) return;
      const seconds = Math.max(1, Math.round((Date.now() - answeredAt) / 1000));
      age.textContent = seconds > LIVE_S ? `not live, ${seconds} s ago` : `live, ${seconds} s ago`;
    },
  };
}

function brandMark() {
  const square = (x, y) => svg("rect", { x, y, width: 8, height: 8, rx: 1.5, fill: "var(--kept)" });
  return svg(
    "svg",
    { width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": "true" },
    square(1, 1), square(11, 1), square(1, 11),
    svg("rect", { x: 11.75, y: 11.75, width: 6.5, height: 6.5, rx: 1.2, fill: "none",
                  stroke: "var(--no-update)", "stroke-width": 1.5 }),
  );
}
