// The key that the server may need. A dialog asks for it, and it is kept until the tab is closed.

import { find } from "./dom.js";

const NAME = "couce-key";
const dialog = find("#key");
const input = find("#key-value");
let asking;
let declined = 0; // how often the user gave none

export const key = () => sessionStorage.getItem(NAME);

export const timesDeclined = () => declined;

export function forgetKey() {
  sessionStorage.removeItem(NAME);
}

/** Asks for a key, once for all requests. Resolves to whether one was given. `refused`: a key that failed. */
export function askForKey(refused) {
  asking ??= ask(refused).finally(() => (asking = undefined));
  return asking;
}

function ask(refused) {
  find("#key-said").textContent = refused ? "The server does not know this key." : "";
  input.value = dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        if (dialog.returnValue) sessionStorage.setItem(NAME, dialog.returnValue);
        else declined++;
        resolve(Boolean(dialog.returnValue));
      },
      { once: true },
    );
  });
}

find("form", dialog).addEventListener("submit", (event) => {
  event.preventDefault();
  const given = input.value.trim();
  // A header can only contain these characters. With others the request would fail before it is sent.
  if (!/^[\x21-\x7e]+$/.test(given)) {
    find("#key-said").textContent = "A key consists of letters, digits and signs without spaces. Copy it again.";
    return;
  }
  dialog.close(given);
});
find("[data-do=cancel]", dialog).addEventListener("click", () => dialog.close(""));
