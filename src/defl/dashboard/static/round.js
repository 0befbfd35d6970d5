// The page /rounds/N: how one round went, what the rule said, weights and scores, and the proof.

import { element, name } from "./dom.js";
import { count, digest, exactSeconds, moment } from "./format.js";
import { mount as mountOpenRound } from "./open_round.js";
import { proofOf } from "./proof.js";
import { refresh } from "./refresh.js";
import { scoresOf } from "./scores.js";
import { timeline, timelineLegend } from "./timeline.js";
import { closedTimeline } from "./timeline_rows.js";

export function mount(root, context) {
  const number = Number(context.parameter);
  const node = context.query.get("node"); // whose record; null: of the one that knows most
  const badge = element("span", { class: "badge", "data-proven": "", hidden: true });
  const about = element("span", { class: "hint" });
  const previous = element("a", { class: "button", rel: "prev", href: `/rounds/${number - 1}`, "aria-label": `Round ${number - 1}` }, `‹ ${count(number - 1)}`);
  const next = element("a", { class: "button", rel: "next", href: `/rounds/${number + 1}`, "aria-label": `Round ${number + 1}` }, `${count(number + 1)} ›`);
  const sentence = element("p", { class: "statement", "data-sentence": true });
  const content = element("div", { class: "columns round-parts" });
  root.append(
    element("div", { class: "page-title" },
      element("h1", {}, `Round ${count(number)}`), badge, about,
      element("nav", { class: "neighbours", "aria-label": "rounds" }, previous, next)),
    sentence, content);
  let parts = null; // what is mounted below: of an open round, of a closed one
  let kind = "";
  let readFor = null; // the state of the rounds that was answered

  function become(newKind, make) {
    if (kind === newKind) return;
    parts?.unmount();
    content.replaceChildren();
    kind = newKind;
    parts = make?.() ?? null;
  }
  function say(words, level) {
    refresh(sentence, words, () => name(words));
    sentence.className = `statement ${level}`;
  }

  async function update(overview, rounds) {
    const open = overview.open_round?.number === number;
    const newest = Math.max(overview.rounds_closed, overview.open_round?.number ?? 0);
    previous.hidden = number <= 1;
    next.hidden = number >= newest;
    root.dataset.state = open ? "open" : number < 1 || number > newest ? "absent" : "closed";
    if (open) {
      become("open", () => mountOpenRound(content, context));
      say(`Round ${count(number)} is open: ${overview.open_round.sentence}.`, "");
      parts.update(overview, rounds);
      return;
    }
    if (number < 1 || number > newest) {
      become("absent");
      say(absentWords(number, overview), "");
      return;
    }
    const row = rounds.round(number);
    const state = JSON.stringify([row ?? null, overview.rounds_closed === number]);
    if (state === readFor) return;
    const isStranger = node !== null && !overview.nodes.some((each) => each.name === node);
    const view = isStranger ? null : await context.get(`/api/rounds/${number}${node ? `?node=${encodeURIComponent(node)}` : ""}`);
    readFor = state;
    if (view === null || view.members.length === 0) {
      become("unknown");
      root.dataset.state = "unknown";
      badge.hidden = true;
      say(view?.sentence ?? `This dashboard does not read a node of the name ${node}.`, "");
      return;
    }
    become("closed", () => mountClosed(content, context, overview));
    badge.hidden = false;
    badge.className = view.proven ? "badge good" : "badge";
    badge.dataset.proven = view.proven ? "yes" : "no";
    refresh(badge, view.proven, () => (view.proven ? `✓ ${view.proven}` : "Not proven yet"));
    refresh(about, [view.closed_at, view.took_s, view.digest], () => aboutOf(view));
    say(view.sentence, view.proven ? "good" : "");
    parts.update(view, overview);
  }

  return { update, unmount: () => parts?.unmount() };
}

function absentWords(number, { rounds_total: total, rounds_closed: closed }) {
  if (number < 1) return "There is no round 0: the first one is round 1.";
  if (number > total) return `There is no round ${count(number)}: this federation runs ${count(total)} rounds.`;
  return `Round ${count(number)} has not begun; ${count(closed)} of ${count(total)} rounds have closed.`;
}

function aboutOf(view) {
  const words = [];
  if (view.closed_at !== null) words.push(`closed ${moment(view.closed_at)}`);
  if (view.took_s !== null) words.push(`took ${exactSeconds(view.took_s)}`);
  const model = view.digest === null ? null
    : element("span", {}, "; model ", element("span", { class: "mono", title: view.digest, "data-digest": view.digest }, `${digest(view.digest, 16)}…`));
  return [words.join(", "), model];
}

// --- a closed round -----------------------------------------------------------------------------

function mountClosed(content, context, { nodes, whole }) {
  const body = element("div");
  const legend = element("div", { class: "legend-place" });
  const picture = timeline(body);
  const canChoose = whole && nodes.length > 1;
  const hint = element("span", { class: "hint" });
  const actions = element("span", { class: "actions" }, canChoose ? viewpoint(context, nodes) : null, picture.toggle);
  const rule = element("span", { class: "hint" });
  const words = element("blockquote", { class: "quote", "data-reason": true });
  const facts = element("dl", { class: "facts" });
  const scores = element("div");
  const proof = element("div");
  const titled = (id, title, more, ...rest) => element("section", { class: "panel", "aria-labelledby": id },
    element("div", { class: "panel-head" }, element("h2", { id }, title), ...more), ...rest);
  content.append(
    element("div", { class: "span-8" }, titled("went", "How the round went", [hint, actions], body, legend)),
    element("div", { class: "span-4" }, titled("rule", "The rule's own words", [rule], words, facts)),
    scores, proof);

  function update(view) {
    const model = closedTimeline(view);
    picture.update(model);
    refresh(hint, view.seen_from, () => (canChoose ? "seconds since it opened" : ["seconds since it opened, seen from ", name(view.seen_from)]));
    refresh(legend, model.phases.length + model.rows.length, () => timelineLegend(model));
    refresh(rule, view.rule, () => name(view.rule));
    refresh(words, view.reason, () => name(view.reason || "No word from the rule: this node has not aggregated the round yet."));
    refresh(facts, view.facts, () => view.facts.flatMap(([title, value]) => [
      element("dt", {}, name(title)), element("dd", {}, name(value))]));
    refresh(scores, [view.members, view.seen_from], () => scoresOf(view));
    refresh(proof, [view.files, view.verify, view.proof, view.proven], () => proofOf(view));
  }

  return { update, unmount: picture.unmount };
}

function viewpoint(context, nodes) {
  const select = element("select", { "aria-label": "seen from", onchange: () =>
    context.go(`/rounds/${context.parameter}?node=${encodeURIComponent(select.value)}`) },
    nodes.map((node) => element("option", { value: node.name, selected: node.name === context.query.get("node") }, node.name)));
  return element("label", {}, "seen from ", select);
}
