// The panel "Proof" of a round: its files, and the command that checks them.

import { element } from "./dom.js";
import { bytes } from "./format.js";

export function proofOf(view) {
  return element("section", { class: "panel", "aria-labelledby": "proof" },
    element("div", { class: "panel-head" }, element("h2", { id: "proof" }, "Proof"),
      element("span", { class: "hint" }, "anybody can check this model offline, without trusting whoever sent it")),
    view.files.length
      ? element("ul", { class: "files" }, view.files.map((file) => element("li", {},
          element("a", { class: "button", href: file.href, download: file.name, "data-file": file.name },
            `↓ ${file.name}`, element("span", { class: "muted" }, file.size === null ? "" : bytes(file.size))))))
      : null,
    view.verify ? command(view.verify) : null,
    element("p", { class: "muted", "data-proof": true }, proofWords(view)));
}

function proofWords(view) {
  const words = [view.proof];
  if (!view.proven && !view.proof)
    words.push("Not proven yet: a model is proven once a quorum of the members has trained from it and signed so, in the round after.");
  if (view.proven && !view.files.some((file) => file.name.endsWith(".safetensors")))
    words.push("The model of this round is no longer kept here: a node keeps its newest ones.");
  return words.filter(Boolean).join(" ");
}

function command(line) {
  const code = element("code", { "data-command": true, tabindex: 0 }, line);
  const said = element("span", { class: "muted", role: "status" });
  const button = element("button", { class: "quiet", type: "button", "data-copy": true, onclick: copy }, "Copy");

  // Without https, and not on this machine, browsers give no clipboard: select the text instead.
  async function copy() {
    try {
      await navigator.clipboard.writeText(line);
      said.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: now press Ctrl+C.";
    }
  }
  return element("div", { class: "command" }, code, element("span", { class: "copy" }, said, " ", button));
}
