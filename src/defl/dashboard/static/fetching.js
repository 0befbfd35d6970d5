// Asking the dashboard: JSON and the page's own modules, and the two ways to get no answer.

const ANSWER_MS = 10_000;

export class NoAnswer extends Error {
  // `status`: of an answer that is an error, for example 404; 0: nobody answered.
  constructor(path, status = 0) {
    super(`no answer to ${path} (${status})`);
    this.status = status;
  }
}

// The cookie is missing: only the address that `defl dashboard` printed sets it.
export class NotAdmitted extends Error {}

export async function get(path) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (answer.ok) return await answer.json();
  } catch {
    throw new NoAnswer(path);
  }
  throw answer.status === 401 ? new NotAdmitted() : new NoAnswer(path, answer.status);
}

// A module that did not arrive may arrive the next time.
export async function load(module) {
  try {
    return await import(`./${module}.js`);
  } catch (error) {
    if (error instanceof SyntaxError) throw error;
    throw new NoAnswer(module);
  }
}
