// The page's frame: which page is shown, the header, and what is fetched each second.
//
// A page or a panel is a module with
//   mount(root, context) -> { update(overview, rounds), unmount() }
// `root` is an empty element of its own. `update` is called at once and after every answer, with
// the Overview of view.py and the Rounds of store.js; it changes what differs and leaves the rest
// alone, so that focus, scroll position and selection stay. It may return a promise; the page
// counts as painted (main[data-ready]) once the first one is done. `unmount` ends what it began.
// `context`:
//   parameter  "24" on /rounds/24, otherwise ""
//   query      the address's URLSearchParams
//   get(path)  the JSON that the dashboard answers; rejects with NoAnswer (its `status` may be 404)
//   go(path)   shows another page, as its link does

import { element } from "./dom.js";
import { NoAnswer, NotAdmitted, get, load } from "./fetching.js";
import { header } from "./header.js";
import { sentenceParts } from "./sentence.js";
import { Rounds } from "./store.js";

const POLL_MS = 1000;

const PAGES = [
  [/^\/$/, "overview"],
  [/^\/rounds$/, "rounds"],
  [/^\/rounds\/([0-9]+)$/, "round"],
  [/^\/members$/, "members"],
  [/^\/node$/, "node"],
  [/^\/nodes$/, "nodes"],
  [/^\/log$/, "log"],
];

const main = document.getElementById("main");
const lost = element("p", { class: "lost", role: "alert", hidden: true });
const top = header(document.getElementById("header"));
const rounds = new Rounds();
let overview = null;
let answeredAt = null; // by this machine's clock
let page = null; // what mount returned; null: its module is not there yet
let visit = 0; // counts pages, so that one that loads slowly does not replace a later one

async function show() {
  const mine = ++visit;
  page?.unmount();
  page = null;
  delete main.dataset.ready;
  const [pattern, module] = PAGES.find(([candidate]) => candidate.test(location.pathname)) ?? [];
  const root = element("div", { class: "page", "data-page": module ?? "none" });
  main.replaceChildren(lost, root);
  top.showTab(location.pathname);
  if (module === undefined) {
    root.append(element("p", {}, "There is no such page. ", element("a", { href: "/" }, "Overview")));
    main.dataset.ready = "";
    return;
  }
  root.append(element("p", { class: "muted", role: "status" }, "Reading history…"));
  const context = {
    parameter: pattern.exec(location.pathname)[1] ?? "",
    query: new URLSearchParams(location.search),
    get,
    go,
  };
  const { mount } = await load(module);
  if (mine !== visit || overview === null) return; // the first answer shows it
  root.replaceChildren();
  page = mount(root, context);
  await page.update(overview, rounds);
  if (mine === visit) main.dataset.ready = "";
}

function go(path) {
  if (path === location.pathname + location.search) return;
  history.pushState(null, "", path);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  return show().catch(showLost);
}

async function poll() {
  const mine = visit;
  try {
    const present = await get("/api/overview");
    if (present.version !== rounds.version) {
      const since = rounds.version === "" ? "" : `?since=${encodeURIComponent(rounds.version)}`;
      rounds.take(await get(`/api/rounds${since}`));
    }
    overview = withoutInherited(present);
    answeredAt = Date.now();
    top.showAge(answeredAt);
    top.update(overview);
    if (page === null) await show();
    else await page.update(overview, rounds);
    if (mine === visit) main.dataset.ready = "";
    lost.hidden = true;
  } catch (error) {
    showLost(error);
  }
  setTimeout(poll, POLL_MS);
}

// A member may be called "constructor": what is keyed by names must not seem to have one already.
function withoutInherited(present) {
  const keyed = [present.open_round?.arrivals, ...present.members.map((member) => member.linked),
                 ...present.nodes.map((node) => node.metrics)];
  for (const each of keyed) if (each) Object.setPrototypeOf(each, null);
  return present;
}

function showLost(error) {
  const since = answeredAt && new Date(answeredAt).toLocaleTimeString("en-GB");
  const words = error instanceof NotAdmitted
    ? "This browser is not let in: open the address that `defl dashboard` printed."
    : !(error instanceof NoAnswer)
      ? "This page has a fault; the browser's console says more."
      : since
        ? `No answer since ${since}; shown is the state then.`
        : "No answer yet; this page goes on asking.";
  if (lost.dataset.lost !== words) {
    lost.dataset.lost = words;
    lost.replaceChildren(...sentenceParts(words, [], String));
  }
  lost.hidden = false;
  if (!(error instanceof NotAdmitted || error instanceof NoAnswer)) console.error(error);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
  if (!PAGES.some(([pattern]) => pattern.test(link.pathname))) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
addEventListener("popstate", () => show().catch(showLost));

show().catch(showLost);
poll();
setInterval(() => top.showAge(answeredAt), POLL_MS);
