// The view Gallery: all images of the index, page by page.

import { emptyIndex, failed } from "./about.js";
import { get } from "./api.js";
import { aborted, find, foreign, make, number } from "./dom.js";
import { LabelFilter, countOf } from "./labels.js";
import { Grid } from "./pictures.js";
import { address, go, here } from "./route.js";

const PAGE = 48;

const body = find("#gallery-body");
const trouble = find("#gallery-trouble");
const pager = find(".pager");
const grid = new Grid(find("#items"));
let loading = new AbortController();

const label = new LabelFilter(find("#gallery-label"), (value) => go("gallery", { label: value }));

export async function showGallery({ parameters }) {
  const wanted = parameters.label ?? "";
  const from = Math.max(0, Math.floor(Number(parameters.from)) || 0);
  label.value = wanted;
  loading.abort();
  loading = new AbortController();
  const { signal } = loading;
  body.setAttribute("aria-busy", "true");
  try {
    // One more item than is shown is requested, to know whether there is a next page.
    const options = new URLSearchParams({ offset: from, limit: PAGE + 1 });
    if (wanted) options.append("filter", `label=${wanted}`);
    const answer = await get(`/items?${options}`, signal);
    const total = answer.total ?? (await countOf(wanted));
    signal.throwIfAborted();
    draw(answer.items, from, total, wanted);
  } catch (error) {
    if (aborted(error)) return;
    grid.clear();
    pager.hidden = true;
    trouble.replaceChildren(failed(error, () => showGallery(here())));
  }
  body.setAttribute("aria-busy", "false");
}

export function leaveGallery() {
  loading.abort();
}

function draw(items, from, total, wanted) {
  const shown = items.slice(0, PAGE);
  grid.show(shown, ({ id }) => address("search", { id }));
  trouble.replaceChildren();
  if (!shown.length && !from) {
    trouble.append(wanted ? make("p", {}, "No image has the label ", foreign(wanted), ".") : emptyIndex());
  }
  pager.hidden = !shown.length && !from;
  const range = `${number(from + 1)} to ${number(from + shown.length)} of ${number(Math.max(total, from + items.length))}`;
  find("#range").textContent = shown.length ? range : "No more images";
  turn(find("#newer"), from > 0, { label: wanted, from: Math.max(0, from - PAGE) || undefined });
  turn(find("#older"), items.length > PAGE, { label: wanted, from: from + PAGE });
}

function turn(link, possible, parameters) {
  if (possible) link.href = address("gallery", parameters);
  else link.removeAttribute("href");
  link.setAttribute("aria-disabled", String(!possible));
}

// A new page begins at its top.
pager.addEventListener("click", (event) => {
  if (event.target.closest("a[href]")) scrollTo({ top: 0 });
});
