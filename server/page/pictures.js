// Grids of thumbnails, and making an image small enough to send.

import { send } from "./api.js";
import { aborted, find, foreign, make, megabytes } from "./dom.js";
import { key } from "./key.js";

const AT_ONCE = 6; // images that are fetched by script at the same time
const TILE = 320; // pixels of the longest side
const LONGEST = 1600; // pixels of the longer side, if an image must be made smaller to be sent

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

/** Images that are shown together and released together. */
export class Album {
  #urls = [];
  #stop = new AbortController();

  /** An img element of an image of the server. `onGone` is called if there is no image. */
  image(path, size, onGone) {
    const image = make("img", { alt: "", draggable: "false", decoding: "async" });
    const address = `${path}?size=${size}`;
    if (key()) {
      this.#fetch(image, address, onGone);
    } else {
      image.loading = "lazy";
      // The error event has no reason. So the image is requested again by script, which gets the reason,
      // and which waits for a server that is busy or gone.
      const again = () => {
        image.removeAttribute("src"); // so that the browser shows no broken image meanwhile
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

/** A list of square tiles. Each links to the search with its image. */
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

  /** Shows items with id, label, image and perhaps score. `link` returns the address of each. */
  show(items, link) {
    const focused = this.#list.contains(document.activeElement);
    this.clear();
    this.#list.append(...items.map((item) => make("li", {}, this.#tile(item, link(item)))));
    // If a tile had the focus, the first of the new tiles gets it.
    if (focused) find("a.tile", this.#list)?.focus({ preventScroll: true });
  }

  #tile(item, href) {
    const frame = make("span", { class: "frame" });
    frame.append(
      this.#album.image(item.image, TILE, () => frame.replaceChildren(make("span", { class: "gone" }, "no image"))),
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

  /** The arrow keys move the focus from tile to tile, in all four directions. */
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

/** The image itself if the server accepts its size, otherwise a smaller copy. */
export async function fitting(blob, limit) {
  if (!limit || blob.size <= limit) return blob;
  const tooLarge = `The image has ${megabytes(blob.size)}, but the server accepts at most ${megabytes(limit)}`;
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    throw new Error(`${tooLarge}, and this browser cannot make it smaller. Choose a smaller image.`);
  }
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const smaller = await jpeg(canvas);
  if (smaller.size > limit) throw new Error(`${tooLarge}, even after the page made it smaller. Choose another image.`);
  return smaller;
}

export const jpeg = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
