// The page /node: all about one node, the federation's facts and its worker's log.

import { element, name } from "./dom.js";
import { count, exactSeconds, metric, NONE } from "./format.js";
import { logPanel } from "./log.js";
import { refresh } from "./refresh.js";
import { mount as mountThisNode } from "./this_node.js";

export function mount(root, context) {
  const own = element("div", { class: "span-6" });
  const more = element("dl", { class: "facts" });
  const federation = element("dl", { class: "facts sentences", "data-federation": true });
  const log = element("div");
  root.append(
    element("h1", { class: "visually-hidden" }, "This node"),
    element("div", { class: "columns" }, own,
      element("div", { class: "span-6" }, panel("node-now", "Now", "", more)),
      panel("federation", "The federation's facts", "the same at every member", federation),
      log));
  const thisNode = mountThisNode(own, context);
  const worker = logPanel(log, context, (view) =>
    refresh(federation, view.facts, () => pairs(view.facts.map(([title, value]) => [title, name(value)]))));

  function update(overview) {
    thisNode.update(overview);
    const node = overview.nodes.find((each) => each.name === overview.title) ?? overview.nodes[0];
    refresh(more, [node, overview.open_round?.open_s], () => pairs(node ? presentFacts(node, overview) : []));
    return worker.update(node);
  }

  return { update, unmount() {} };
}

const panel = (id, title, hint, content) =>
  element("section", { class: "panel", "aria-labelledby": id },
    element("div", { class: "panel-head" }, element("h2", { id }, title), element("span", { class: "hint" }, hint)), content);

const pairs = (facts) => facts.flatMap(([title, value]) => [element("dt", {}, title), element("dd", {}, value)]);

function presentFacts(node, overview) {
  const open = overview.open_round;
  return [
    ["process", name(node.process)],
    ["doing now", node.doing ? name(node.doing) : NONE],
    ["role", node.role ? name(node.role) : NONE],
    ["rounds closed", `${count(overview.rounds_closed)} of ${count(overview.rounds_total)}`],
    ["open round", open ? `${count(open.number)}, for ${exactSeconds(open.open_s)}` : NONE],
    ["model ready", node.model_round === null ? NONE : `round ${count(node.model_round)}`],
    ...Object.entries(node.metrics).map(([title, value]) => [
      title, `${metric(title, value)} (round ${count(node.metrics_round)})`]),
    ["peers", node.peers ? `${count(node.connected)} of ${count(node.peers)} connected` : NONE],
    ["epoch", node.role ? count(node.epoch) : NONE], // without a role there is no status
  ];
}
