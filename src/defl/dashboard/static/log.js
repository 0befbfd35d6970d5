// The page /log: the tail of each node's worker log, as it was written.

import { element, name } from "./dom.js";
import { refresh } from "./refresh.js";

const READ_AGAIN_MS = 3000;

export function mount(root, context) {
  const select = element("select", { "aria-label": "node", onchange: () => context.go(`/log?node=${encodeURIComponent(select.value)}`) });
  const choice = element("span", { class: "actions" }, "node ", select);
  const panel = logPanel(root, context);
  panel.head.append(choice);
  root.prepend(element("h1", { class: "visually-hidden" }, "Log"));

  function update(overview) {
    const names = overview.nodes.map((node) => node.name);
    const chosen = context.query.get("node") ?? names[0];
    choice.hidden = names.length < 2;
    refresh(select, names, () => names.map((each) => element("option", { value: each, selected: each === chosen }, each)));
    return panel.update(overview.nodes.find((node) => node.name === chosen));
  }

  return { update, unmount() {} };
}

// The panel with one node's worker log and its errors; also on the page /node. `facts` gets each
// FactsView that was read.
export function logPanel(root, context, facts = () => {}) {
  const hint = element("span", { class: "hint" });
  const head = element("div", { class: "panel-head" }, element("h2", { id: "worker-log" }, "Worker's log"), hint);
  const errors = element("div");
  const log = element("pre", { class: "log", tabindex: 0, role: "region", "aria-label": "the log's last lines", "data-log": true });
  root.append(element("section", { class: "panel", "aria-labelledby": "worker-log" }, head, errors, log));
  let readAt = -Infinity;

  async function update(node) {
    if (node === undefined) return void refresh(log, null, () => "There is no such node here.");
    refresh(errors, [node.worker_error, node.evaluation_error, node.training_failures], () => errorsOf(node));
    if (performance.now() - readAt < READ_AGAIN_MS) return;
    readAt = performance.now();
    const view = await context.get(`/api/node?name=${encodeURIComponent(node.name)}`);
    facts(view);
    refresh(hint, [view.name, view.worker_log_is_cut], () => [name(view.name), view.worker_log_is_cut ? ", its last lines" : ""]);
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    refresh(log, view.worker_log, () => view.worker_log || "The worker has written nothing.");
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  return { head, update };
}

function errorsOf(node) {
  const note = (title, text) => element("div", { class: "trouble-note", "data-error": title },
    element("p", {}, title), element("pre", {}, text));
  const made = [];
  if (node.worker_error) made.push(note(`Training failed (${node.training_failures} times so far); the last error:`, node.worker_error));
  if (node.evaluation_error) made.push(note("evaluate failed; the last error:", node.evaluation_error));
  return made;
}
