// The panel "Round 41, now": the open round as a timeline, seen from one node. While none is open,
// the newest one that has closed.

import { element, name } from "./dom.js";
import { count } from "./format.js";
import { refresh } from "./refresh.js";
import { timeline, timelineLegend } from "./timeline.js";
import { closedTimeline, openTimeline } from "./timeline_rows.js";

export function mount(root, context) {
  const title = element("h2", { id: "open-round" });
  const hint = element("span", { class: "hint" });
  const body = element("div");
  const legend = element("div", { class: "legend-place" });
  const picture = timeline(body);
  const actions = element("span", { class: "actions" }, picture.toggle);
  const panel = element("section", { class: "panel", "aria-labelledby": "open-round", "data-open-round": "" },
    element("div", { class: "panel-head" }, title, hint, actions), body, legend);
  root.append(panel);
  let newest = null; // the RoundView that is shown while no round is open

  function show(model) {
    for (const part of [body, legend, actions]) part.hidden = model === null;
    if (model === null) return;
    picture.update(model);
    refresh(legend, [model.phases.map((phase) => phase.phase), model.rows.map((row) => row.kind)],
            () => timelineLegend(model));
  }

  async function update(overview) {
    const open = overview.open_round;
    const closed = overview.rounds_closed;
    panel.dataset.openRound = open?.number ?? "";
    if (open) {
      refresh(title, [open.number, "now"], () => [linkTo(open.number), ", now"]);
      refresh(hint, open.sentence, () => name(open.sentence));
      return show(openTimeline(open, overview.members.map((member) => member.name)));
    }
    if (closed > 0 && newest?.number !== closed) newest = await context.get(`/api/rounds/${closed}`);
    if (closed === 0) newest = null;
    refresh(title, [newest?.number, "newest"], () => (newest ? [linkTo(newest.number), ", the newest"] : "Now"));
    refresh(hint, [newest?.sentence, closed], () => (newest ? name(newest.sentence) : "no round is open here"));
    show(newest && closedTimeline(newest));
  }

  return { update, unmount: picture.unmount };
}

const linkTo = (number) => element("a", { class: "plain", href: `/rounds/${number}` }, `Round ${count(number)}`);
