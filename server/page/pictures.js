// Pictures: grids of them from the server, and making one small enough to send.

import { send } from "./api.js";
import { aborted, find, foreign, make, megabytes } from "./dom.js";
import { key } from "./key.js";

const AT_ONCE = 6; // pictures that are fetched by script at the same time
const TILE = 320; // pixels of the longest side
const LONGEST = 1600; // of a picture that must be made smaller to be sent

export const imageOf = (id) => `/items/${encodeURIComponent(id)}/image`;

let running = 0;
const queue = [];

async function next() {
  if (running >= AT_ONCE || !queue.length) return;
  running++;
  await queue.shift()();
  running--;
  next();
}

/** Pictures that are shown together and forgotten together. */
export class Album {
  #urls = [];
  #stop = new AbortController();

  /** An img of a picture of the server; `onGone` is called if there is none. */
  image(path, size, onGone) {
    const image = make("img", { alt: "", draggable: "false", decoding: "async" });
    const address = `${path}?size=${size}`;
    if (key()) {
      this.#fetch(image, address, onGone);
    } else {
      image.loading = "lazy";
      // The event does not say why it failed; asked once more by script, the server does, and a server
      // that is busy or away is waited for.
      const again = () => {
        image.removeAttribute("src"); // else the browser draws a broken picture meanwhile
        this.#fetch(image, address, onGone);
      };
      image.addEventListener("error", again, { once: true });
      image.src = address;
    }
    return image;
  }

  clear() {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#urls.splice(0).forEach(URL.revokeObjectURL);
  }

  #fetch(image, address, onGone) {
    const { signal } = this.#stop;
    queue.push(async () => {
      try {
        const blob = await (await send(address, { signal })).blob();
        signal.throwIfAborted();
        const url = URL.createObjectURL(blob);
        this.#urls.push(url);
        image.addEventListener("error", onGone, { once: true });
        image.src = url;
      } catch (error) {
        if (!aborted(error)) onGone(error);
      }
    });
    next();
  }
}

/** A list of square tiles that link to the search by their pictures. */
export class Grid {
  #list;
  #album = new Album();

  constructor(list) {
    this.#list = list;
    list.addEventListener("keydown", (event) => this.#move(event));
  }

  clear() {
    this.#album.clear();
    this.#list.replaceChildren();
  }

  /** `items` have id, label and image, and hits a score; `link` gives the address of each. */
  show(items, link) {
    const focused = this.#list.contains(document.activeElement);
    this.clear();
    this.#list.append(...items.map((item) => make("li", {}, this.#tile(item, link(item)))));
    // Whoever chose a tile by keyboard goes on from the first of the new ones.
    if (focused) find("a.tile", this.#list)?.focus({ preventScroll: true });
  }

  #tile(item, href) {
    const frame = make("span", { class: "frame" });
    frame.append(
      this.#album.image(item.image, TILE, () => frame.replaceChildren(make("span", { class: "gone" }, "no picture"))),
    );
    const caption = make(
      "span",
      { class: "caption" },
      item.label === null ? foreign(item.id, { class: "foreign unlabelled" }) : foreign(item.label),
    );
    const title = [item.label, item.id].filter(Boolean).join("\n");
    const tile = make("a", { class: "tile", href, title, draggable: "false" }, frame, caption);
    if (item.score !== undefined) {
      caption.append(make("span", { class: "score" }, item.score.toFixed(3), bar(item.score)));
    }
    return tile;
  }

  /** Arrow keys go from tile to tile, up and down too. */
  #move(event) {
    const tiles = [...this.#list.querySelectorAll("a.tile")];
    const at = tiles.indexOf(event.target.closest("a.tile"));
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const top = tiles[0].offsetTop;
    const columns = tiles.filter((tile) => tile.offsetTop === top).length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step || !tiles[at + step]) return;
    event.preventDefault();
    tiles[at + step].focus();
  }
}

/** A thin bar that is full at 1 and empty at 0 and below. */
export function bar(share) {
  const full = make("span", { class: "full" });
  full.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, full);
}

/** The picture itself if the server takes one of its size, else a smaller one of the same. */
export async function fitting(blob, limit) {
  if (!limit || blob.size <= limit) return blob;
  const tooLarge = `The picture has ${megabytes(blob.size)}, the server takes ${megabytes(limit)}`;
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    throw new Error(`${tooLarge}, and this browser cannot read it to make it smaller.`);
  }
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const smaller = await jpeg(canvas);
  if (smaller.size > limit) throw new Error(`${tooLarge}, and it stays too large when made smaller.`);
  return smaller;
}

export const jpeg = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
