// The label filter: a combobox of all labels of the index. There may be many thousands.

import { get } from "./api.js";
import { aborted, button, find, foreign, make, number } from "./dom.js";

const SHOWN = 60; // options at once; typing narrows them
const FRESH_MS = 10_000;
const ROOM = 340; // pixels of the list, if there is enough space
const ENOUGH = 200; // pixels below the field; with fewer, the list opens above
const MARGIN = 16;

let known = { at: -Infinity, labels: Promise.resolve([]) };

/** All labels as [label, count], in the order of their names. */
function allLabels() {
  if (performance.now() - known.at > FRESH_MS) {
    const { compare } = new Intl.Collator(undefined, { numeric: true });
    const labels = get("/labels").then((answer) =>
      Object.entries(answer.labels).sort(([a], [b]) => compare(a, b)),
    );
    known = { at: performance.now(), labels };
    labels.catch(() => (known.at = -Infinity));
  }
  return known.labels;
}

export async function countOf(label) {
  return new Map(await allLabels()).get(label) ?? 0;
}

export class LabelFilter {
  #input;
  #list;
  #clear;
  #value = "";
  #active = -1;
  #onChange;

  constructor(container, onChange) {
    this.#onChange = onChange;
    const id = container.id;
    this.#input = make("input", {
      id: `${id}-input`,
      type: "text",
      role: "combobox",
      placeholder: "all labels",
      autocomplete: "off",
      spellcheck: "false",
      dir: "auto",
      "aria-expanded": "false",
      "aria-autocomplete": "list",
      "aria-controls": `${id}-list`,
    });
    this.#list = make("ul", { id: `${id}-list`, role: "listbox", class: "options", "aria-label": "Labels", hidden: true });
    this.#clear = button("×", () => this.#choose(""), { class: "clear", "aria-label": "All labels", hidden: true });
    container.append(
      make("label", { for: `${id}-input` }, "Label"),
      make("div", { class: "combobox" }, this.#input, this.#clear, this.#list),
    );
    // If the field already has the focus, a click opens the list again.
    for (const kind of ["focus", "input", "click"]) this.#input.addEventListener(kind, () => this.#open());
    this.#input.addEventListener("keydown", (event) => this.#key(event));
    this.#input.addEventListener("blur", () => this.#leave());
    this.#list.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus
    this.#list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#choose(option.dataset.label);
    });
  }

  get value() {
    return this.#value;
  }

  set value(label) {
    this.#value = this.#input.value = this.#input.title = label;
    this.#clear.hidden = !label;
  }

  async #open() {
    let labels;
    try {
      labels = await allLabels();
    } catch (error) {
      if (!aborted(error)) this.#show([make("li", { class: "hint" }, error.message)]);
      return;
    }
    if (document.activeElement !== this.#input) return;
    const typed = this.#input.value === this.#value ? "" : this.#input.value.trim().toLowerCase();
    const fit = labels.filter(([label]) => label.toLowerCase().includes(typed));
    const options = fit.slice(0, SHOWN).map(([label, count], n) =>
      make(
        "li",
        { id: `${this.#list.id}-${n}`, role: "option", "aria-selected": String(label === this.#value), "data-label": label },
        foreign(label),
        make("span", { class: "count" }, number(count)),
      ),
    );
    if (!fit.length) options.push(make("li", { class: "hint" }, labels.length ? "no label contains this text" : "the index has no labels"));
    if (fit.length > SHOWN) options.push(make("li", { class: "hint" }, `${number(fit.length - SHOWN)} more labels; type a part of the name`));
    this.#show(options);
  }

  #show(options) {
    const { top, bottom } = this.#input.getBoundingClientRect();
    const below = innerHeight - bottom - MARGIN;
    const above = below < ENOUGH && top - MARGIN > below;
    this.#list.classList.toggle("above", above);
    this.#list.style.maxHeight = `${Math.max(MARGIN * 5, Math.min(ROOM, above ? top - MARGIN : below))}px`;
    this.#list.replaceChildren(...options);
    this.#list.hidden = false;
    this.#list.scrollTop = 0;
    this.#input.setAttribute("aria-expanded", "true");
    this.#activate(-1);
  }

  #close() {
    this.#list.hidden = true;
    this.#input.setAttribute("aria-expanded", "false");
    this.#activate(-1);
  }

  #activate(at) {
    const options = this.#list.querySelectorAll("[role=option]");
    this.#active = options.length ? Math.min(Math.max(at, -1), options.length - 1) : -1;
    find(".active", this.#list)?.classList.remove("active");
    const option = options[this.#active];
    option?.classList.add("active");
    option?.scrollIntoView({ block: "nearest" });
    if (option) this.#input.setAttribute("aria-activedescendant", option.id);
    else this.#input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    const open = !this.#list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (open) this.#activate(this.#active + (event.key === "ArrowDown" ? 1 : -1));
      else this.#open();
    } else if (event.key === "Enter" && open) {
      event.preventDefault();
      this.#take();
    } else if (event.key === "Escape" && open) {
      event.stopPropagation();
      this.value = this.#value;
      this.#close();
    }
  }

  /** Enter takes the marked option. Without one, it takes the label that was typed, or the first option. */
  #take() {
    if (!this.#input.value.trim() && this.#active < 0) return this.#choose("");
    const options = [...this.#list.querySelectorAll("[role=option]")];
    const exact = options.find((option) => option.dataset.label === this.#input.value.trim());
    const taken = options[this.#active] ?? exact ?? options[0];
    if (taken) this.#choose(taken.dataset.label);
  }

  #choose(label) {
    const changed = label !== this.#value;
    this.value = label;
    this.#close();
    if (changed) this.#onChange(label);
  }

  #leave() {
    if (this.#input.value === "" && this.#value) this.#choose("");
    this.value = this.#value;
    this.#close();
  }
}
