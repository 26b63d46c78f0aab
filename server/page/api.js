// Talks to the server. A request waits for a key, for a busy server, and for a server that cannot be
// reached. All other errors are thrown as a Problem.

import { askForKey, key, timesDeclined } from "./key.js";
import { pause, sentence } from "./dom.js";
import { notice } from "./notice.js";

const TRIES = 5; // of a request to a busy server
const RETURNS = 3; // how often a request may break off although the server is ready

export class Problem extends Error {
  constructor(detail, status = 0, code = "") {
    super(sentence(detail));
    this.status = status;
    this.code = code;
  }
}

const headers = (more = {}) => (key() ? { ...more, Authorization: `Bearer ${key()}` } : more);

/** The server's answer to a request, as a Response that is ok. */
export async function send(path, { method = "GET", body, type, signal } = {}) {
  let busy = 0;
  let broken = 0;
  for (;;) {
    const used = key();
    const declined = timesDeclined();
    let response;
    try {
      response = await fetch(path, { method, body, signal, headers: headers(type ? { "Content-Type": type } : {}) });
    } catch (error) {
      signal?.throwIfAborted();
      if (++broken > RETURNS) throw new Problem("The connection broke off several times. Check the network, then try again.");
      await untilReady(signal);
      continue;
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status === 401) {
      // While this request was under way, another one may have got a key, or the user gave none.
      if (used !== key()) continue;
      if (declined !== timesDeclined() || !(await askForKey(used))) throw problem;
    } else if (response.status === 429 && ++busy < TRIES) {
      await untilFree(problem, response.headers.get("Retry-After"), busy, signal);
    } else if (response.status === 503 && ++broken <= RETURNS) {
      await untilReady(signal, problem.message);
    } else {
      throw problem;
    }
  }
}

export const get = async (path, signal) => (await send(path, { signal })).json();

export const post = async (path, value, signal) =>
  (await send(path, { method: "POST", body: JSON.stringify(value), type: "application/json", signal })).json();

async function problemOf(response) {
  try {
    const { detail, title, code } = await response.json();
    return new Problem(detail || title, response.status, code);
  } catch {
    return new Problem(`The server answered with the status ${response.status}. Try again later.`, response.status);
  }
}

async function untilFree(problem, after, tried, signal) {
  const seconds = Math.min(Math.max(Math.ceil(Number(after)) || 1, 1), 60);
  const said = notice("busy");
  try {
    for (let left = seconds; left > 0; left--) {
      said.say(problem.message, ` Trying again in ${left} s (${tried} of ${TRIES - 1}).`);
      await pause(1000, signal);
    }
  } finally {
    said.end();
  }
}

let waiting; // all requests wait for the same recovery

/** Asks the server until it is ready, and resolves then. */
export function untilReady(signal, why) {
  waiting ??= recover(why).finally(() => (waiting = undefined));
  if (!signal) return waiting;
  return Promise.race([
    waiting,
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
  ]);
}

async function recover(why = "The server cannot be reached.") {
  let said;
  for (let wait = 500; ; wait = Math.min(wait * 1.5, 5000)) {
    if (await ready()) break;
    said ??= notice("offline");
    said.say(`${why} Trying again until it answers.`);
    await Promise.race([pause(wait), new Promise((resolve) => addEventListener("online", resolve, { once: true }))]);
  }
  if (!said) return pause(300);
  said.end();
  dispatchEvent(new Event("recovered"));
}

async function ready() {
  try {
    return (await fetch("/readyz", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}
