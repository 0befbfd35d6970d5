// The panel "What happened": events of all nodes, newest first.

import { element, name } from "./dom.js";
import { clock, moment } from "./format.js";
import { refresh, refreshList } from "./refresh.js";

const SHOWN = 8; // more on request

export function mount(root) {
  const hint = element("span", { class: "hint" });
  const list = element("ol", { class: "happened", "data-happened": true });
  const none = element("p", { class: "muted" }, "Nothing yet.");
  let events = [];
  let all = false;
  const more = element("button", { class: "quiet", type: "button", onclick: () => { all = !all; show(); } });
  root.append(
    element("section", { class: "panel", "aria-labelledby": "happened" },
      element("div", { class: "panel-head" }, element("h2", { id: "happened" }, "What happened"), hint,
        element("div", { class: "actions" }, more)),
      list, none));

  function update(overview) {
    events = overview.happened;
    refresh(hint, overview.whole, () => (overview.whole ? "newest first, all nodes" : "newest first"));
    show();
  }

  function show() {
    none.hidden = events.length > 0;
    more.hidden = events.length <= SHOWN;
    more.textContent = all ? `the newest ${SHOWN}` : `all ${events.length}`;
    refreshList(list, all ? events : events.slice(0, SHOWN), () => element("li"), (item, event) =>
      refresh(item, event, () => [
        element("time", { datetime: new Date(event.at * 1000).toISOString(), title: moment(event.at) }, clock(event.at)),
        element("span", { class: "who" }, name(event.node)),
        element("span", { class: "event" },
          element("strong", {}, name(event.what)), event.more ? " " : null, event.more ? name(event.more) : null),
      ]));
  }

  return { update, unmount() {} };
}
