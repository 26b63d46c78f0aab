// The bar at the top shows what the page waits for. Each kind is shown once, for all requests.

import { find, make } from "./dom.js";

const shown = new Map();

export function notice(kind) {
  let entry = shown.get(kind);
  if (!entry) {
    // Screen readers skip the countdown, because each number would interrupt the one before.
    const text = make("span");
    const counting = make("span", { "aria-hidden": "true" });
    entry = { users: 0, text, counting, line: make("p", { class: `notice ${kind}` }, text, counting) };
    shown.set(kind, entry);
    find("#notice").append(entry.line);
  }
  entry.users++;
  return {
    say(text, counting = "") {
      if (entry.text.textContent !== text) entry.text.textContent = text;
      entry.counting.textContent = counting;
    },
    end() {
      if (--entry.users > 0) return;
      entry.line.remove();
      shown.delete(kind);
    },
  };
}
