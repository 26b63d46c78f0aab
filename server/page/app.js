// The frame of the page: switches between the views, and accepts images that are dropped or pasted.

import { info } from "./about.js";
import { untilReady } from "./api.js";
import { find } from "./dom.js";
import { leaveEvaluation, showEvaluation } from "./evaluation.js";
import { leaveGallery, showGallery } from "./gallery.js";
import { go, here, onRoute, tell } from "./route.js";
import { leaveSearch, refuse, searchBy, showSearch } from "./search.js";

const VIEWS = {
  search: { title: "Search", show: showSearch, leave: leaveSearch },
  gallery: { title: "Gallery", show: showGallery, leave: leaveGallery },
  evaluation: { title: "Evaluation", show: showEvaluation, leave: leaveEvaluation },
};

let shown;

onRoute((place) => {
  const view = Object.hasOwn(VIEWS, place.view) ? place.view : "search";
  if (view !== shown) {
    VIEWS[shown]?.leave();
    shown = view;
    document.title = `${VIEWS[view].title} · CouCE`;
    for (const name of Object.keys(VIEWS)) find(`#${name}`).hidden = name !== view;
    for (const link of document.querySelectorAll("[data-view]")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    about();
  }
  VIEWS[view].show(place);
});

async function about() {
  try {
    await info(true);
  } catch (error) {
    find("#about").replaceChildren(error.message);
  }
}

// The browser would ignore a link to the current address, and the image that was searched with would stay.
for (const link of document.querySelectorAll(".top a")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.hash.slice(2));
  });
}

find(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  find("#main").focus();
});

// An image may be dropped or pasted anywhere.

const curtain = find("#curtain");
const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");

function take(files) {
  const picture = files.find((file) => file.type.startsWith("image/")) ?? files[0];
  if (picture) return searchBy(picture, picture.name);
  if (here().view !== "search") go("search");
  refuse("There is no image in what you dropped or pasted.");
}

addEventListener("dragenter", (event) => {
  if (holdsFiles(event)) curtain.hidden = false;
});
addEventListener("dragover", (event) => {
  if (holdsFiles(event)) event.preventDefault();
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) curtain.hidden = true;
});
addEventListener("drop", (event) => {
  curtain.hidden = true;
  if (!holdsFiles(event)) return;
  event.preventDefault();
  if (!document.querySelector("dialog[open]")) take([...event.dataTransfer.files]);
});
addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  const typing = event.target.closest?.("input[type=text]") && !files.length;
  if (typing || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  take(files);
});

// A server that is gone is noticed before the next search. When it is back, the footer is updated.
addEventListener("offline", () => untilReady());
addEventListener("recovered", () => about());

tell();
