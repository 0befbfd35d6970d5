// The panel "This node": model, latency, traffic, disk, and the fingerprint in large letters.

import { element, name } from "./dom.js";
import { NONE, bytes, count, digest, milliseconds } from "./format.js";

export function mount(root) {
  const address = element("span", { class: "hint" });
  const list = element("dl", { class: "facts this-node" });
  const fingerprint = element("p", { class: "fingerprint", "data-fingerprint-large": true });
  root.append(
    element(
      "section", { class: "panel", "aria-label": "This node" },
      element("div", { class: "panel-head" }, element("h2", {}, "This node"), address),
      list,
      element(
        "div", { class: "fingerprint-block" },
        element("p", { class: "hint" }, "fingerprint, the same at every member"), fingerprint,
      ),
    ),
  );
  const values = new Map(); // label -> dd
  const show = (label, text, mono = "") => {
    if (!values.has(label)) {
      values.set(label, element("dd"));
      list.append(element("dt", {}, label), values.get(label));
    }
    const cell = values.get(label);
    if (cell.dataset.shown === text + mono) return;
    cell.dataset.shown = text + mono;
    cell.replaceChildren(text, ...(mono ? [" ", element("span", { class: "mono" }, mono)] : []));
  };

  return {
    update(overview) {
      const node = overview.nodes[0];
      root.hidden = node === undefined;
      if (node === undefined) return;
      if (address.textContent !== node.address) address.replaceChildren(name(node.address));
      const proven = node.proven_round === null ? "none yet" : `round ${count(node.proven_round)}`;
      show("newest proven model", proven, node.proven === null ? "" : digest(node.proven));
      const median = milliseconds(node.commit_p50_ms);
      show("commit latency", median === NONE ? NONE : `${median}, p99 ${milliseconds(node.commit_p99_ms)}`);
      // Every process uses memory: without, there is no status, and the other figures mean nothing.
      const hasRun = node.memory_peak_bytes > 0;
      const figure = (label, text) => show(label, hasRun ? text : NONE);
      figure("sent, received", `${bytes(node.sent_bytes)}, ${bytes(node.received_bytes)}`);
      const most = node.disk_max_bytes === null ? "" : ` of ${bytes(node.disk_max_bytes)} at most`;
      figure("disk", `${bytes(node.disk_bytes)}${most}`);
      figure("memory", `${bytes(node.memory_peak_bytes)} peak`);
      figure("training failures", count(node.training_failures));
      figure("view, height", `${count(node.view)}, ${count(node.height)}`);
      if (fingerprint.dataset.shown === overview.fingerprint) return;
      fingerprint.dataset.shown = overview.fingerprint;
      const groups = overview.fingerprint.split(" ");
      const lines = [groups.slice(0, 4), groups.slice(4)].map((four) => element("span", {}, four.join(" ")));
      fingerprint.replaceChildren(lines[0], " ", lines[1]);
    },
    unmount() {},
  };
}
