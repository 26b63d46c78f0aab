// The view Search: searches with the user's own image, or with an image of the gallery.

import { emptyIndex, failed, info } from "./about.js";
import { get, post, send } from "./api.js";
import { hasCamera, openCamera } from "./camera.js";
import { aborted, box, counted, find, foreign, make, milliseconds, pause } from "./dom.js";
import { LabelFilter } from "./labels.js";
import { Album, Grid, fitting, imageOf } from "./pictures.js";
import { address, go, here } from "./route.js";

const HITS = 20;
const MOST_HITS = 60;
const KEPT = 12; // how many of the user's own images the button Back can return to
const SETTLED_MS = 150; // a search starts when the slider has not moved for so long

const results = find("#results");
const summary = find("#summary");
const trouble = find("#trouble");
const refused = find("#refused");
const slider = find("#k");
const hits = new Grid(find("#hits"));
const samples = new Grid(find("#samples ul"));
const asked = new Album();

const pictures = new Map(); // the user's own images: number in the history -> {blob, name, url}
let numbers = Date.now(); // numbers of an earlier page in the history must not occur again
let searching = new AbortController();
let sliding = new AbortController();
let drawn; // the query whose image is on the page
let describing = new AbortController();

const label = new LabelFilter(find("#search-label"), (value) => change({ label: value || undefined }));

/** Shows the search of an address: with an image of the gallery, with the user's own, or none yet. */
export function showSearch({ parameters, picture }) {
  const options = optionsOf(parameters);
  slider.value = options.k;
  find("#k-value").textContent = options.k;
  label.value = options.label;
  searching.abort();
  searching = new AbortController();
  const own = pictures.get(picture);
  const query = parameters.id ? { id: parameters.id } : own;
  refused.replaceChildren();
  find("#ask").hidden = Boolean(query);
  find("#found").hidden = !query;
  if (!query) return ask(searching.signal);
  drawQuery(query);
  return run(query, options, searching.signal);
}

export function leaveSearch() {
  searching.abort();
}

/** Searches with a file or another blob that is an image. */
export function searchBy(blob, name = "") {
  const picture = ++numbers;
  pictures.set(picture, { blob, name, url: URL.createObjectURL(blob) });
  for (const [old, { url }] of pictures) {
    if (old > picture - KEPT) break;
    URL.revokeObjectURL(url);
    pictures.delete(old);
  }
  const { parameters, view } = here();
  const { k, label: wanted } = view === "search" ? parameters : {};
  go("search", { k, label: wanted }, { picture });
  scrollTo({ top: 0 });
}

/** Says why there was no search. The hits of the last search stay. */
export function refuse(text) {
  (find("#ask").hidden ? trouble : refused).replaceChildren(box(text));
}

function optionsOf(parameters) {
  const k = Math.round(Number(parameters.k));
  return { k: k >= 1 && k <= MOST_HITS ? k : HITS, label: parameters.label ?? "" };
}

function change(changes, replace = false) {
  const { parameters, picture } = here();
  go("search", { ...parameters, ...changes }, { replace, picture });
}

async function ask(signal) {
  drawn = undefined;
  clear();
  find("#samples").hidden = true;
  try {
    const { items } = await get("/items?limit=12", signal);
    find("#samples").hidden = !items.length;
    find("#ask > .empty")?.remove();
    if (!items.length) find("#ask").append(emptyIndex());
    samples.show(items, linkTo);
  } catch (error) {
    if (!aborted(error)) samples.clear(); // the samples are optional; a search will show the error
  }
}

async function run(query, { k, label: wanted }, signal) {
  results.setAttribute("aria-busy", "true");
  if (!summary.hasChildNodes()) summary.replaceChildren("Searching…");
  const filter = wanted ? [`label=${wanted}`] : [];
  try {
    const answer = query.id
      ? await post("/search", { id: query.id, k, filter }, signal)
      : await searchPicture(query.blob, k, filter, signal);
    const { index } = await info(!answer.hits.length);
    signal.throwIfAborted();
    draw(answer, wanted, !index.items);
  } catch (error) {
    if (aborted(error)) return;
    clear();
    trouble.replaceChildren(failed(error, () => showSearch(here())));
  }
  results.setAttribute("aria-busy", "false");
}

async function searchPicture(blob, k, filter, signal) {
  const { limits } = await info();
  const body = await fitting(blob, limits.body_bytes);
  const options = new URLSearchParams([["k", k], ...filter.map((each) => ["filter", each])]);
  // Any file is sent, because the server examines its bytes and explains what is wrong.
  const type = body.type.startsWith("image/") ? body.type : "application/octet-stream";
  return (await send(`/search?${options}`, { method: "POST", body, type, signal })).json();
}

function draw(answer, wanted, isEmpty) {
  trouble.replaceChildren();
  hits.show(answer.hits, linkTo);
  const found = counted(answer.hits.length, "most similar image");
  if (answer.hits.length) summary.replaceChildren(...(wanted ? [`${found} of `, foreign(wanted)] : [found]));
  else summary.replaceChildren("Nothing found");
  const { decode_ms, embed_ms, search_ms, total_ms } = answer.time;
  find("#times").textContent = Object.entries({ decode: decode_ms, embed: embed_ms, search: search_ms, total: total_ms })
    .filter(([, ms]) => typeof ms === "number")
    .map(([name, ms]) => `${name} ${milliseconds(ms)}`.replaceAll(" ", "\u00a0"))
    .join(" · ");
  if (answer.hits.length) return;
  if (wanted) trouble.replaceChildren(make("p", {}, "No other image has the label ", foreign(wanted), "."));
  else trouble.replaceChildren(isEmpty ? emptyIndex() : make("p", {}, "There is no other image in the gallery."));
}

function clear() {
  hits.clear();
  summary.replaceChildren();
  find("#times").textContent = "";
  trouble.replaceChildren();
  results.setAttribute("aria-busy", "false");
}

const linkTo = ({ id }) => {
  const { k, label: wanted } = here().parameters;
  return address("search", { id, k, label: wanted });
};

function drawQuery(query) {
  if (drawn === (query.id ?? query)) return;
  drawn = query.id ?? query;
  asked.clear();
  describing.abort();
  describing = new AbortController();
  const frame = find("#query .frame");
  const caption = find("#query figcaption");
  const gone = () => frame.replaceChildren(make("span", { class: "gone" }, "this browser cannot show the image"));
  if (query.id) {
    frame.replaceChildren(asked.image(imageOf(query.id), 640, gone));
    caption.replaceChildren(foreign(query.id, { class: "foreign unlabelled" }));
    describe(query.id, caption, describing.signal);
  } else {
    const image = make("img", { alt: "The image that you search with", src: query.url });
    image.addEventListener("error", gone);
    frame.replaceChildren(image);
    caption.replaceChildren(query.name ? foreign(query.name) : "your image");
  }
}

async function describe(id, caption, signal) {
  try {
    const item = await get(`/items/${encodeURIComponent(id)}`, signal);
    if (item.label !== null) caption.prepend(foreign(item.label));
  } catch {
    // The search with this item shows the error.
  }
}

// The page's own controls.

for (const list of document.querySelectorAll("#search .grid")) {
  list.addEventListener("click", (event) => {
    if (event.target.closest("a.tile")) scrollTo({ top: 0 }); // to the new image
  });
}

const file = find("#picture-file");
file.addEventListener("change", () => {
  if (file.files[0]) searchBy(file.files[0], file.files[0].name);
  file.value = ""; // so that the same file can be chosen again
});
for (const each of document.querySelectorAll("#search [data-do=choose]")) {
  each.addEventListener("click", () => file.click());
}
for (const each of document.querySelectorAll("#search [data-do=camera]")) {
  each.hidden = !hasCamera();
  each.addEventListener("click", () => openCamera((blob) => searchBy(blob, "from the camera")));
}

slider.addEventListener("input", async () => {
  find("#k-value").textContent = slider.value;
  sliding.abort();
  sliding = new AbortController();
  try {
    await pause(SETTLED_MS, sliding.signal);
  } catch {
    return;
  }
  change({ k: Number(slider.value) === HITS ? undefined : slider.value }, true);
});
