// The verdicts of all members in all rounds as arrays, and what is counted from them. A round that
// changes costs its own row only: 100 members x 10,000 rounds are never counted twice.

import { VERDICT } from "./store.js";

const code = (letter) => letter.charCodeAt(0);
export const CODE = Object.fromEntries(
  Object.entries(VERDICT).map(([key, letter]) => [key, code(letter)]),
);
const { KEPT, LEFT_OUT, LATE, NO_UPDATE, NOT_A_MEMBER, UNKNOWN } = CODE;

// Rounds that count in "of all": the member was asked and the verdict is known.
const isJudged = (letter) =>
  letter === KEPT || letter === LEFT_OUT || letter === LATE || letter === NO_UPDATE ? 1 : 0;

export const isException = (letter) =>
  letter === LEFT_OUT || letter === LATE || letter === NO_UPDATE;

export class Tally {
  members = 0;
  first = 1; // round of index 0
  length = 0; // rounds, without a gap: one that the page lacks is UNKNOWN
  letters = new Uint8Array(0); // of round index i and member m: [i * members + m]
  leftOut = new Uint16Array(0); // members per round index
  late = new Uint16Array(0);
  noUpdate = new Uint16Array(0);
  proven = new Uint8Array(0);
  kept = new Uint32Array(0); // rounds per member
  judged = new Uint32Array(0);
  counted = 0; // rounds counted so far, over all updates
  #rows = []; // what has been counted: compared by identity
  #version = null;

  // Counts what is new or changed in `rounds`; the indices of those rounds, in ascending order.
  take(rounds) {
    if (rounds.version === this.#version) return [];
    this.#version = rounds.version;
    const first = rounds.numbers[0] ?? 1;
    const length = rounds.numbers.length ? rounds.numbers.at(-1) - first + 1 : 0;
    if (first !== this.first || length < this.length || rounds.members.length !== this.members)
      this.#clear(first, rounds.members.length);
    this.#reserve(length);
    this.length = length;
    const changed = [];
    for (const number of rounds.numbers) {
      const row = rounds.round(number);
      const index = number - first;
      if (this.#rows[index] === row) continue;
      this.#rows[index] = row;
      this.#count(index, row);
      changed.push(index);
    }
    this.counted += changed.length;
    return changed;
  }

  get last() {
    return this.first + this.length - 1;
  }

  letter(member, number) {
    const index = number - this.first;
    return index < 0 || index >= this.length ? UNKNOWN : this.letters[index * this.members + member];
  }

  // Per member, over the rounds `from` to `to`: how many were kept, and how many were exceptions,
  // and in how many it was kept or its verdict is still to come.
  over(from, to) {
    const { members, letters, first } = this;
    const kept = new Uint32Array(members);
    const exceptions = new Uint32Array(members);
    const outside = new Uint32Array(members); // not a member, or no record
    for (let index = from - first; index <= to - first; index++) {
      const base = index * members;
      for (let member = 0; member < members; member++) {
        const letter = letters[base + member];
        if (letter === KEPT) kept[member]++;
        else if (isException(letter)) exceptions[member]++;
        else if (letter === NOT_A_MEMBER || letter === UNKNOWN) outside[member]++;
      }
    }
    return { kept, exceptions, outside };
  }

  #clear(first, members) {
    this.first = first;
    this.members = members;
    this.length = 0;
    this.kept = new Uint32Array(members);
    this.judged = new Uint32Array(members);
    this.letters = new Uint8Array(0);
    for (const key of ["leftOut", "late", "noUpdate", "proven"]) this[key] = this[key].slice(0, 0);
    this.#rows = [];
  }

  #reserve(length) {
    if (length <= this.proven.length) return;
    const capacity = Math.max(length, 2 * this.proven.length);
    const grown = (old, made) => (made.set(old), made);
    this.letters = grown(this.letters, new Uint8Array(capacity * this.members).fill(UNKNOWN));
    for (const key of ["leftOut", "late", "noUpdate"])
      this[key] = grown(this[key], new Uint16Array(capacity));
    this.proven = grown(this.proven, new Uint8Array(capacity));
  }

  #count(index, row) {
    const { letters, kept, judged, members } = this;
    const base = index * members;
    let leftOut = 0;
    let late = 0;
    let noUpdate = 0;
    for (let member = 0; member < members; member++) {
      const now = row.cells.charCodeAt(member) || UNKNOWN; // a shorter row: before it joined
      const before = letters[base + member];
      if (now !== before) {
        kept[member] += (now === KEPT ? 1 : 0) - (before === KEPT ? 1 : 0);
        judged[member] += isJudged(now) - isJudged(before);
        letters[base + member] = now;
      }
      if (now === LEFT_OUT) leftOut++;
      else if (now === LATE) late++;
      else if (now === NO_UPDATE) noUpdate++;
    }
    this.leftOut[index] = leftOut;
    this.late[index] = late;
    this.noUpdate[index] = noUpdate;
    this.proven[index] = row.isProven ? 1 : 0;
  }
}
