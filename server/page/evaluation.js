// The view Evaluation: starts evaluations, follows them while they run, and shows their metrics.

import { failed, info } from "./about.js";
import { Problem, get, post, send } from "./api.js";
import { aborted, box, button, counted, find, make, megabytes, pause, sentence } from "./dom.js";
import { bar } from "./pictures.js";
import { address, go, here } from "./route.js";

const POLL_MS = 400;

const MEANING = {
  "R@1": "the nearest image has the same label",
  "R@2": "one of the nearest 2 images has the same label",
  "R@4": "one of the nearest 4 images has the same label",
  "R@8": "one of the nearest 8 images has the same label",
  RP: "share of the same label among the nearest R images, where R is the number of images with this label",
  "MAP@R": "like RP, but hits at the top count more",
  NMI: "how well clusters of the embeddings agree with the labels",
};
const OF = { index: "This index", queries: "Images of a zip", embeddings: "Embeddings of an npz" };
const STATE = { queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };

const trouble = find("#evaluation-trouble");
const place = find("#job");
let following = new AbortController();

export async function showEvaluation({ parameters }) {
  following.abort();
  following = new AbortController();
  const { signal } = following;
  trouble.replaceChildren();
  try {
    const { jobs } = await get("/evaluate", signal);
    drawJobs(jobs, parameters.job ?? jobs[0]?.id);
    if (parameters.job || jobs.length) await follow(parameters.job ?? jobs[0].id, signal);
    else place.replaceChildren();
  } catch (error) {
    if (aborted(error)) return;
    place.replaceChildren();
    trouble.replaceChildren(failed(error, () => showEvaluation(here())));
  }
}

export function leaveEvaluation() {
  following.abort();
}

async function follow(id, signal) {
  const path = `/evaluate/${encodeURIComponent(id)}`;
  let job = await get(path, signal);
  drawJob(job);
  if (ended(job)) return;
  while (!ended(job)) {
    await pause(POLL_MS, signal);
    job = await get(path, signal);
    drawJob(job);
  }
  drawJobs((await get("/evaluate", signal)).jobs, id);
}

const ended = (job) => !["queued", "running"].includes(job.state);

async function start(request) {
  following.abort();
  trouble.replaceChildren();
  try {
    const job = await request();
    if (here().view === "evaluation") go("evaluation", { job: job.id });
  } catch (error) {
    if (here().view === "evaluation") showEvaluation(here());
    trouble.replaceChildren(box(error.message));
  }
}

async function upload(file) {
  const kind = { zip: "zip", npz: "x-npz" }[file.name.split(".").pop().toLowerCase()];
  if (!kind) throw new Problem(`${file.name} is neither a zip nor an npz. Choose another file.`);
  const { limits } = await info();
  if (file.size > limits.upload_bytes) {
    const most = megabytes(limits.upload_bytes);
    const size = megabytes(file.size);
    throw new Problem(`${file.name} has ${size}, but the server accepts at most ${most}. Choose a smaller file.`);
  }
  place.replaceChildren(make("p", { role: "status" }, "Sending the file…"));
  return (await send("/evaluate", { method: "POST", body: file, type: `application/${kind}` })).json();
}

function drawJob(job) {
  const size = [
    job.items !== null && counted(job.items, job.of === "embeddings" ? "embedding" : "image"),
    job.classes !== null && counted(job.classes, "label"),
    job.left_out > 0 && `${counted(job.left_out, "image")} left out`,
  ];
  const card = make(
    "article",
    { class: "card", "data-id": job.id, "data-state": job.state },
    make("h2", {}, OF[job.of] ?? job.of),
    make("p", { class: "hint" }, [STATE[job.state], job.started && `started ${when(job.started)}`, ...size].filter(Boolean).join(" · ")),
  );
  if (!ended(job)) card.append(progress(job));
  if (job.detail) card.append(make("p", { class: "detail" }, sentence(job.detail)));
  if (job.metrics) card.append(metrics(job.metrics));
  // While it runs, only the numbers are replaced, so that the button keeps the focus.
  const old = find("article", place);
  if (old && old.dataset.id === job.id && old.dataset.state === job.state && !ended(job)) {
    find(".stage", old).textContent = job.stage;
    find(".share", old).textContent = shareOf(job);
    find("progress", old).value = find("progress", card).value;
    return;
  }
  place.replaceChildren(card);
}

const shareOf = (job) => `, ${Math.round(job.progress * 100)} %`;

function progress(job) {
  const share = make("progress", { max: "1", "aria-label": "Progress" });
  share.value = job.progress;
  // Screen readers skip the numbers, because each would interrupt the one before.
  const stage = make(
    "p",
    {},
    make("span", { class: "stage", role: "status" }, job.stage),
    make("span", { class: "share", "aria-hidden": "true" }, shareOf(job)),
  );
  const cancel = button("Cancel", async () => {
    cancel.disabled = true;
    try {
      await send(`/evaluate/${encodeURIComponent(job.id)}`, { method: "DELETE" });
    } catch (error) {
      trouble.replaceChildren(box(error.message));
    }
  });
  return make("div", { class: "progress" }, stage, share, make("div", { class: "actions" }, cancel));
}

function metrics(values) {
  const rows = Object.entries(values).map(([name, value]) => {
    const known = typeof value === "number" && Number.isFinite(value);
    return make(
      "tr",
      { title: MEANING[name] },
      make("th", { scope: "row" }, name),
      make("td", { class: "wide" }, bar(known ? value : 0), make("span", { class: "hint" }, MEANING[name] ?? "")),
      make("td", { class: "value" }, known ? `${(100 * value).toFixed(1)} %` : "–"),
    );
  });
  return make("table", { class: "metrics" }, make("caption", { class: "unseen" }, "Metrics in percent"), make("tbody", {}, ...rows));
}

function drawJobs(jobs, chosen) {
  find("#earlier").hidden = !jobs.length;
  find("#jobs").replaceChildren(
    ...jobs.map((job) => {
      const first = job.metrics && Object.entries(job.metrics)[0];
      const outcome = first && typeof first[1] === "number" ? `${first[0]} ${(100 * first[1]).toFixed(1)} %` : STATE[job.state];
      return make(
        "li",
        {},
        make(
          "a",
          { href: address("evaluation", { job: job.id }), "aria-current": job.id === chosen ? "true" : null },
          make("span", {}, OF[job.of] ?? job.of),
          make("span", { class: "hint" }, job.started ? when(job.started) : ""),
          make("span", { class: "value" }, outcome),
        ),
      );
    }),
  );
}

function when(seconds) {
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString("en-GB", today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

const file = find("#evaluation-file");
file.addEventListener("change", () => {
  const [chosen] = file.files;
  if (chosen) start(() => upload(chosen));
  file.value = "";
});
find("#evaluate-file").addEventListener("click", () => file.click());
find("#evaluate-index").addEventListener("click", () => start(() => post("/evaluate", { of: "index" })));
