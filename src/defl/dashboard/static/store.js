// The rounds that the page has fetched, kept up to date by `take`. Layout reads from here.

export const VERDICT = { KEPT: "k", LEFT_OUT: "x", LATE: "l", NO_UPDATE: "n", NOT_A_MEMBER: "-",
                         PENDING: "p", UNKNOWN: "?" };

export class Rounds {
  version = "";
  members = [];
  metrics = [];
  higherIsBetter = [];
  marks = [];
  numbers = []; // ascending
  #rows = new Map();

  // `view`: an answer of /api/rounds (RoundsView of view.py).
  take(view) {
    if (view.whole) this.#rows.clear();
    this.version = view.version;
    this.members = view.members;
    this.metrics = view.metrics;
    this.higherIsBetter = view.higher_is_better;
    this.marks = view.marks;
    for (const [number, cells, tookS, isProven, closedAt, metrics] of view.rounds)
      this.#rows.set(number, { number, cells, tookS, isProven, closedAt, metrics });
    this.numbers = [...this.#rows.keys()].sort((a, b) => a - b);
  }

  round(number) {
    return this.#rows.get(number);
  }

  // The verdict letter of a member (by its place in `members`) in a round.
  cell(member, number) {
    return this.#rows.get(number)?.cells[member] ?? VERDICT.UNKNOWN;
  }
}
