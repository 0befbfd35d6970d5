// The nodes whose folders this dashboard reads: what each does, has and uses. A page, and a panel
// of the overview.

import { element, name } from "./dom.js";
import { bytes, count, digest, metric, milliseconds, NONE } from "./format.js";
import { refresh, refreshList } from "./refresh.js";
import { phaseIcon } from "./timeline.js";
import { linkIcon } from "./links.js";

export function mount(root) {
  const hint = element("span", { class: "hint" });
  const head = element("tr");
  const body = element("tbody");
  if (root.dataset.page) root.append(element("h1", { class: "visually-hidden" }, "Nodes"));
  root.append(
    element("section", { class: "panel", "aria-labelledby": "nodes" },
      element("div", { class: "panel-head" }, element("h2", { id: "nodes" }, "Nodes"), hint),
      element("div", { class: "scroll" },
        element("table", { class: "data nodes", "data-nodes": true }, element("thead", {}, head), body))));

  function update(overview) {
    const metrics = metricNames(overview.nodes);
    const round = newestModel(overview.nodes);
    const columns = columnsOf(metrics[0], round);
    refresh(hint, overview.nodes.length, () => (overview.nodes.length > 1 ? "on this machine" : "whose folder is read"));
    refresh(head, [metrics[0], round], () => columns.map((column) =>
      element("th", { scope: "col", class: column.isNumber ? "number" : null }, column.title)));
    refreshList(body, overview.nodes, () => element("tr"), (row, node) => {
      row.dataset.node = node.name;
      refreshList(row, columns, () => element("td"), (cell, column) => {
        cell.className = column.isNumber ? "number" : "";
        cell.dataset.label = column.title;
        refresh(cell, [column.title, column.key(node)], () => column.show(node));
      });
    });
  }

  return { update, unmount() {} };
}

const metricNames = (nodes) => [...new Set(nodes.flatMap((node) => Object.keys(node.metrics)))];

const newestModel = (nodes) => Math.max(0, ...nodes.map((node) => node.model_round ?? 0));

// `key`: what a cell depends on; `show`: its children.
function columnsOf(metricName, round) {
  const figure = (title, read) => ({ title, isNumber: true, key: read, show: (node) => [read(node)] });
  const size = (title, field) => figure(title, (node) => bytes(node[field] || (node.runs ? 0 : null)));
  return [
    { title: "node", key: (node) => node.name, show: (node) => [element("strong", { class: "node-name" }, name(node.name))] },
    { title: "process", key: (node) => [node.runs, node.process, node.training_failures], show: processOf },
    { title: "doing now", key: (node) => [node.phase, node.doing],
      show: (node) => (node.doing ? [element("span", { class: "with-icon" }, node.phase ? phaseIcon(node.phase) : null, name(node.doing))] : [NONE]) },
    { title: round ? `model of ${round}` : "model", key: (node) => [node.model, node.model_round, node.same_model, round],
      show: (node) => modelOf(node, round) },
    ...(metricName ? [figure(metricName, (node) => metric(metricName, node.metrics[metricName]))] : []),
    figure("peers", (node) => (node.runs ? `${node.connected} of ${node.peers}` : NONE)),
    figure("commit, median", (node) => milliseconds(node.commit_p50_ms)),
    figure("p99", (node) => milliseconds(node.commit_p99_ms)),
    size("sent", "sent_bytes"),
    size("received", "received_bytes"),
    size("memory", "memory_peak_bytes"),
    size("disk", "disk_bytes"),
  ];
}

const processIcon = (node) => (node.runs ? "connected" : node.process === "finished" ? "finished" : "away");

function processOf(node) {
  const failures = node.training_failures === 0 ? null
    : element("a", { class: "second failing", href: `/log?node=${encodeURIComponent(node.name)}` },
              `training failed ${count(node.training_failures)} times`);
  return [element("span", {},
    element("span", { class: "with-icon" }, linkIcon(processIcon(node)), name(node.process)), failures)];
}

// "=": the same model as the others have; "≠": another one, which must never be.
function modelOf(node, round) {
  if (node.model === null) return [NONE];
  const old = node.model_round === round ? null : element("span", { class: "muted" }, ` of ${count(node.model_round)}`);
  const same = node.same_model === null ? null
    : node.same_model
      ? element("span", { class: "same", title: "the same as the others'" }, " =", element("span", { class: "visually-hidden" }, " the same as the others'"))
      : element("strong", { class: "differs" }, " ≠ differs");
  return [element("span", {}, element("span", { class: "mono", title: node.model }, digest(node.model)), same, old)];
}
