// Small functions that make elements. Answers of the server only become text or properties.

export const find = (selector, root = document) => root.querySelector(selector);

/** An element: `make("a", {href: "#/", class: "tile"}, "text", child)`; properties without a value are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Text of any direction and length. CSS cuts it if it is too long, and its title has all of it. */
export const foreign = (text, properties = {}) =>
  make("bdi", { class: "foreign", title: text, ...properties }, text);

export const button = (text, onclick, properties = {}) =>
  make("button", { type: "button", onclick, ...properties }, text);

/** A box with an error, and below it buttons for what the user can do. */
export const box = (text, ...actions) =>
  make("div", { class: "box", role: "alert" }, make("p", {}, text), ...actions);

/** A sentence of the server with a capital letter and a full stop. */
export function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

export const number = (value) => value.toLocaleString("en");

export const counted = (count, one, many = `${one}s`) =>
  `${number(count)} ${count === 1 ? one : many}`;

export const milliseconds = (value) =>
  value < 10 ? `${value.toFixed(1)} ms` : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;

export const megabytes = (bytes) =>
  bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

/** Resolves after `ms`, or rejects as soon as the signal aborts. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Whether an error only means that the page no longer waits for the answer. */
export const aborted = (error) => error?.name === "AbortError";
