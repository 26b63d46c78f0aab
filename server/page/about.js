// Shows the server's /info in the footer. It is requested again with every change of view.

import { get } from "./api.js";
import { box, button, counted, find, foreign, make } from "./dom.js";
import { forgetKey, key } from "./key.js";
import { tell } from "./route.js";

let asked;

/** The server's /info. `anew`: request it again, because its numbers may have changed. */
export function info(anew = false) {
  if (anew || !asked) {
    asked = get("/info").then((answer) => {
      show(answer);
      return answer;
    });
    asked.catch(() => (asked = undefined));
  }
  return asked;
}

function show({ couce, model, index }) {
  const entry = (name, ...values) => make("div", {}, make("dt", {}, name), make("dd", {}, ...values));
  const trained = model.dataset && model.dataset !== "none" ? `, trained on ${model.dataset}` : "";
  find("#about").replaceChildren(
    make(
      "dl",
      {},
      entry("Model", foreign(`${model.backbone ?? "unknown"}${trained}`, { title: `sha256 ${model.hash}` })),
      entry("Embedding", `${model.dim} numbers, ${model.precision ?? "unknown precision"}`),
      entry("Gallery", `${counted(index.items, "image")}, ${counted(index.labels ?? 0, "label")}`),
      entry("CouCE", couce),
      entry("For programs", make("a", { href: "/openapi.json" }, "the HTTP interface")),
    ),
    ...(key() ? [button("Forget the key", leave, { class: "quiet" })] : []),
  );
}

function leave() {
  forgetKey();
  location.reload();
}

/** Says how to add images to an empty index. */
export function emptyIndex() {
  return make(
    "div",
    { class: "box empty", role: "status" },
    make("h2", {}, "The index is empty"),
    make("p", {}, "Add a folder of images with this command on the server's machine:"),
    make("pre", {}, make("code", {}, "couce index build gallery/")),
    make("p", {}, "Or send images one by one:"),
    make("pre", {}, make("code", {}, `curl -F image=@wren.jpg -F label=wren ${location.origin}/items`)),
    button("Look again", () => {
      info(true);
      tell(); // a reload of the page would lose the image that was searched with
    }),
  );
}

/** A box with an error. It has a button to try again if the same request may succeed later. */
export function failed(error, again) {
  const final = error.status >= 400 && error.status < 500 && ![401, 408, 429].includes(error.status);
  return final ? box(error.message) : box(error.message, button("Try again", again));
}
