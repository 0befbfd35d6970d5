// Sentences that nodes and rules write: members' names isolated, `commands` as code.

import { element } from "./dom.js";

// `wrap(name)` makes the element for a member's name; returns strings and elements.
export function sentenceParts(text, members, wrap) {
  return text
    .split(/`([^`]+)`/)
    .flatMap((part, place) => (place % 2 ? element("code", {}, part) : namesWrapped(part, members, wrap)));
}

function namesWrapped(text, members, wrap) {
  const names = members.map((member) => member.name).filter(Boolean);
  if (names.length === 0) return [text];
  const escaped = names
    .sort((a, b) => b.length - a.length)
    .map((one) => one.replace(/[^\p{L}\p{N}]/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`));
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}_-])(${escaped.join("|")})(?![\\p{L}\\p{N}_-])`, "u");
  return text.split(pattern).map((part, place) => (place % 2 ? wrap(part) : part));
}
