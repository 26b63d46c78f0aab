// The key that the server may want: asked for in a dialog, kept for this tab, sent with every request.

import { find } from "./dom.js";

const NAME = "couce-key";
const dialog = find("#key");
const input = find("#key-value");
let asking;

export const key = () => sessionStorage.getItem(NAME);

export function forgetKey() {
  sessionStorage.removeItem(NAME);
}

/** Asks, once for all requests that want one; whether a key was given. `refused` is the key that failed. */
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
        resolve(Boolean(dialog.returnValue));
      },
      { once: true },
    );
  });
}

find("form", dialog).addEventListener("submit", (event) => {
  event.preventDefault();
  const given = input.value.trim();
  // A header takes only these; anything else would fail before it is sent.
  if (!/^[\x21-\x7e]+$/.test(given)) {
    find("#key-said").textContent = "A key has only letters, digits and signs, without spaces.";
    return;
  }
  dialog.close(given);
});
find("[data-do=cancel]", dialog).addEventListener("click", () => dialog.close(""));
