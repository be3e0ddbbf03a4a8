// The list of conversations: open, rename, export, delete with a way back, search.
//
// Invariant: an entry that stays is changed in place, so that the focus and a title that is being
// typed survive changes from other tabs.

import { element, iconButton } from "./dom.js";
import { notify } from "./notices.js";
import { wordsOf } from "./turns.js";
import { dayGroup } from "./words.js";

const SEARCH_AFTER_MS = 150;

export class Sidebar {
  #store;
  #list;
  #search;
  #actions;
  #entries = new Map();
  #all = [];
  #openId = null;
  #found = null;
  #searching = null;
  #isListing = false;
  #isStale = false;

  /** `actions` has `open(id)`, `rename(id, title)`, `save(id)`, `stop(id)` and `startNew()`. */
  constructor({ store, list, search, actions }) {
    this.#store = store;
    this.#list = list;
    this.#search = search;
    this.#actions = actions;
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#find(), SEARCH_AFTER_MS);
    });
    search.addEventListener("keydown", (event) => this.#searchKey(event));
    store.listen(({ turn }) => {
      if (!turn) this.refresh();
    });
  }

  async refresh() {
    this.#isStale = true;
    if (this.#isListing) return;
    this.#isListing = true;
    while (this.#isStale) {
      this.#isStale = false;
      this.#all = await this.#store.conversations();
    }
    this.#isListing = false;
    this.#all.sort((a, b) => b.updated - a.updated);
    this.#show();
  }

  setOpen(id) {
    if (id === this.#openId) return;
    this.#openId = id;
    this.#entries.forEach((entry, entryId) => entry.setOpen(entryId === id));
  }

  /** Opens the conversation `step` places below the open one. */
  move(step) {
    const shown = this.#shown();
    const index = shown.findIndex(({ id }) => id === this.#openId);
    const next = shown[index < 0 ? 0 : index + step];
    if (next) this.#actions.open(next.id);
  }

  #shown() {
    const text = this.#search.value.trim().toLowerCase();
    if (text === "") return this.#all;
    return this.#all.filter(({ id, title }) =>
      title.toLowerCase().includes(text) || this.#found?.has(id));
  }

  async #find() {
    this.#searching?.abort();
    this.#found = null;
    this.#show();
    const text = this.#search.value.trim();
    if (text === "") return;
    this.#searching = new AbortController();
    const { signal } = this.#searching;
    const found = await this.#store.search(text, wordsOf, signal);
    if (signal.aborted) return;
    this.#found = found;
    this.#show();
  }

  #searchKey(event) {
    if (event.key === "Escape" && this.#search.value !== "") {
      event.stopPropagation();
      this.#search.value = "";
      this.#find();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      this.#list.querySelector(".entry-open")?.focus();
    }
  }

  #show() {
    const shown = this.#shown();
    const now = Date.now();
    const groups = new Map();
    for (const conversation of shown) {
      const name = dayGroup(conversation.updated, now);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.#entry(conversation).element);
    }
    const known = new Set(this.#all.map(({ id }) => id));
    for (const id of this.#entries.keys()) if (!known.has(id)) this.#entries.delete(id);
    const focused = document.activeElement;
    const blocks = [...groups].map(([name, items]) => element("section", {},
      element("h2", {}, name), element("ul", {}, ...items)));
    this.#list.replaceChildren(...blocks);
    if (blocks.length === 0) {
      const isSearch = this.#search.value.trim() !== "";
      const text = isSearch ? "Nothing found." : "No conversations yet.";
      this.#list.append(element("p", { class: "hint" }, text));
    }
    // Entries were put into new lists, which takes the focus away.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus();
  }

  #entry(conversation) {
    let entry = this.#entries.get(conversation.id);
    if (!entry) {
      entry = new Entry(conversation.id, {
        ...this.#actions,
        remove: (id, title) => this.#remove(id, title),
      });
      this.#entries.set(conversation.id, entry);
    }
    entry.update(conversation);
    entry.setOpen(conversation.id === this.#openId);
    return entry;
  }

  async #remove(id, title) {
    const shown = this.#shown();
    const index = shown.findIndex((conversation) => conversation.id === id);
    const next = shown[index + 1] ?? shown[index - 1];
    this.#actions.stop(id);
    await this.#store.deleteConversation(id, Date.now());
    await this.refresh();
    if (id === this.#openId) this.#actions.startNew();
    const place = next && this.#entries.get(next.id)?.element.querySelector(".entry-open");
    (place ?? this.#search).focus();
    notify(`Deleted “${title}”.`, {
      action: {
        label: "Undo",
        run: async () => {
          await this.#store.restoreConversation(id);
          this.#actions.open(id);
        },
      },
    });
  }
}

class Entry {
  #id;
  #actions;
  #title = "";
  #open;
  #rename = null;

  constructor(id, actions) {
    this.#id = id;
    this.#actions = actions;
    this.#open = element("button", {
      type: "button",
      class: "entry-open",
      on: {
        click: () => actions.open(id),
        dblclick: () => this.#edit(),
        keydown: (event) => this.#key(event),
      },
    });
    const buttons = element("div", { class: "entry-buttons" },
      iconButton("edit", "Rename", () => this.#edit()),
      iconButton("save", "Export", () => actions.save(id)),
      iconButton("trash", "Delete", () => actions.remove(id, this.#title)));
    this.element = element("li", { class: "entry" }, this.#open, buttons);
  }

  update({ title }) {
    const shown = title || "Untitled";
    if (shown === this.#title) return;
    this.#title = shown;
    this.#open.textContent = shown;
    this.#open.title = shown;
    for (const button of this.element.querySelectorAll(".entry-buttons button")) {
      button.setAttribute("aria-label", `${button.title} “${shown}”`);
    }
  }

  setOpen(isOpen) {
    this.element.classList.toggle("open", isOpen);
    if (isOpen) this.#open.setAttribute("aria-current", "true");
    else this.#open.removeAttribute("aria-current");
  }

  #key(event) {
    if (event.key === "F2") this.#edit();
    else if (event.key === "Delete") this.#actions.remove(this.#id, this.#title);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const all = [...this.element.closest("nav").querySelectorAll(".entry-open")];
      const step = event.key === "ArrowDown" ? 1 : -1;
      all[all.indexOf(this.#open) + step]?.focus();
    }
  }

  #edit() {
    if (this.#rename) return;
    const end = (isKept) => {
      if (!this.#rename) return;
      const title = this.#rename.value.trim();
      const field = this.#rename;
      this.#rename = null;
      field.replaceWith(this.#open);
      if (isKept && title && title !== this.#title) this.#actions.rename(this.#id, title);
      this.#open.focus();
    };
    this.#rename = element("input", {
      class: "entry-name",
      "aria-label": "Name of the conversation",
      maxlength: "200",
      on: {
        blur: () => end(true),
        keydown: (event) => {
          if (event.key !== "Enter" && event.key !== "Escape") return;
          event.preventDefault();
          event.stopPropagation();
          end(event.key === "Enter");
        },
      },
    });
    this.#rename.value = this.#title;
    this.#open.replaceWith(this.#rename);
    this.#rename.focus();
    this.#rename.select();
  }
}
