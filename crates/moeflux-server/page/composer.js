// The field for a message, with files and the count of its tokens.
//
// Files become text in the message; what is no text is refused. Invariant: a text that was typed is
// lost neither by a reload nor by another conversation that is opened meanwhile.

import { element, icon, iconButton } from "./dom.js";
import { draft, keepDraft } from "./kept.js";
import { notify } from "./notices.js";
import { growingField } from "./turn_parts.js";
import { count, plural, size } from "./words.js";

// The server takes a body of about a megabyte with the least memory; more would be refused there.
const FILE_BYTES_MAX = 1_000_000;
const N_FILES_MAX = 20;
// A pasted text of this length is easier to handle as a file.
const PASTED_CHARACTERS_MAX = 6_000;
const COUNT_AFTER_MS = 300;

export class Composer {
  #onSend;
  #onStop;
  #countTokens;
  #field;
  #setText;
  #list = element("ul", { class: "files", "aria-label": "Files of this message" });
  #counter = element("span", { class: "counter" });
  #send;
  #files = [];
  #conversationId = null;
  #timer = 0;
  #counting = null;
  #nTokens = 0;
  #context = { used: 0, max: 0 };
  #isRunning = false;

  /** `onSend` returns whether it was sent; `countTokens(text, signal)` asks the server. */
  constructor({ form, drop, onSend, onStop, countTokens }) {
    this.#onSend = onSend;
    this.#onStop = onStop;
    this.#countTokens = countTokens;
    const about = { id: "message", "aria-label": "Message", placeholder: "Ask something" };
    const { frame, field, setText } = growingField(about);
    this.#field = field;
    this.#setText = setText;
    const picker = element("input", { type: "file", multiple: true, hidden: true });
    picker.addEventListener("change", () => {
      this.#take([...picker.files]);
      picker.value = "";
    });
    const attach = iconButton("file", "Add text files", () => picker.click());
    this.#send = element("button", { type: "submit", class: "send" });
    form.append(this.#list, frame, element("div", { class: "composer-foot" }, attach, picker,
      this.#counter, this.#send));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#isRunning) this.#onStop();
      else this.#submit();
    });
    field.addEventListener("input", () => this.#changed());
    field.addEventListener("keydown", (event) => this.#key(event));
    field.addEventListener("paste", (event) => this.#paste(event));
    this.#acceptDrops(drop);
    this.setRunning(false);
  }

  focus() {
    this.#field.focus();
  }

  get isEmpty() {
    return this.#field.value === "" && this.#files.length === 0;
  }

  setText(text) {
    this.#setText(text);
    this.#changed();
    this.focus();
  }

  open(conversationId) {
    if (conversationId === this.#conversationId) return;
    this.#conversationId = conversationId;
    this.#files = [];
    this.#setText(draft(conversationId));
    this.#showFiles();
    this.#changed();
  }

  setRunning(isRunning) {
    if (this.#send.hasChildNodes() && isRunning === this.#isRunning) return;
    this.#isRunning = isRunning;
    const label = isRunning ? "Stop the answer" : "Send the message";
    this.#send.setAttribute("aria-label", label);
    this.#send.title = `${label} (${isRunning ? "Escape" : "Enter"})`;
    this.#send.replaceChildren(icon(isRunning ? "stop" : "send"));
    this.#send.classList.toggle("stop", isRunning);
  }

  /** Tokens of the conversation so far, and of the context of the model. */
  setContext(used, max) {
    this.#context = { used, max };
    this.#showCount();
  }

  #submit() {
    const text = this.#field.value.trim();
    if (text === "" && this.#files.length === 0) return;
    const files = this.#files.map(({ name, text: content }) => ({ name, text: content }));
    const conversationId = this.#conversationId;
    if (!this.#onSend(text, files)) return;
    this.#files = [];
    this.#setText("");
    keepDraft(conversationId, "");
    this.#showFiles();
    this.#changed();
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (!this.#isRunning) this.#submit();
  }

  #paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (files.length > 0 && text === "") {
      event.preventDefault();
      this.#take(files);
    } else if (text.length > PASTED_CHARACTERS_MAX) {
      event.preventDefault();
      this.#add("pasted text", text);
    }
  }

  #acceptDrops(drop) {
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    drop.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      drop.classList.add("dropping");
    });
    drop.addEventListener("dragleave", (event) => {
      if (!drop.contains(event.relatedTarget)) drop.classList.remove("dropping");
    });
    drop.addEventListener("drop", (event) => {
      drop.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#take([...event.dataTransfer.files]);
    });
  }

  async #take(files) {
    for (const file of files) {
      try {
        this.#add(file.name, await textOf(file));
      } catch (error) {
        notify(error.message);
      }
    }
  }

  #add(name, text) {
    if (this.#files.length >= N_FILES_MAX) {
      notify(`A message can have ${N_FILES_MAX} files.`);
      return;
    }
    const file = { name, text, nTokens: null, element: null };
    this.#files.push(file);
    this.#showFiles();
    this.#changed();
    this.#countFile(file);
  }

  async #countFile(file) {
    try {
      file.nTokens = await this.#countTokens(file.text);
    } catch (error) {
      file.problem = error.kind === "length" ? "longer than the context" : "not counted";
    }
    this.#showFiles();
    this.#showCount();
  }

  #showFiles() {
    this.#list.hidden = this.#files.length === 0;
    this.#list.replaceChildren(...this.#files.map((file) => {
      const nBytes = new Blob([file.text]).size;
      const tokens = file.problem ?? (file.nTokens === null ? "counting…"
        : plural(file.nTokens, "token"));
      const remove = iconButton("close", `Remove ${file.name}`, () => {
        this.#files = this.#files.filter((other) => other !== file);
        this.#showFiles();
        this.#changed();
        this.focus();
      });
      return element("li", { class: "file chip" }, icon("file"), element("span", {}, file.name),
        element("small", {}, `${size(nBytes)}, ${tokens}`), remove);
    }));
  }

  #changed() {
    if (this.#conversationId) keepDraft(this.#conversationId, this.#field.value);
    clearTimeout(this.#timer);
    this.#counting?.abort();
    if (this.#field.value.trim() === "") {
      this.#nTokens = 0;
      this.#showCount();
    } else {
      this.#timer = setTimeout(() => this.#count(), COUNT_AFTER_MS);
    }
  }

  async #count() {
    this.#counting = new AbortController();
    const { signal } = this.#counting;
    let nTokens = 0;
    try {
      nTokens = await this.#countTokens(this.#field.value, signal);
    } catch (error) {
      // The server counts no further than the context. Other failures do not keep one from sending.
      if (error.kind === "length") nTokens = Infinity;
    }
    if (signal.aborted) return;
    this.#nTokens = nTokens;
    this.#showCount();
  }

  #showCount() {
    const inFiles = this.#files.reduce((sum, { nTokens }) => sum + (nTokens ?? 0), 0);
    const n = this.#nTokens + inFiles;
    const { used, max } = this.#context;
    const parts = [];
    if (n === Infinity) parts.push(`longer than the context of ${plural(max, "token")}`);
    else if (n > 0) parts.push(plural(n, "token"));
    const isCounted = n < Infinity && max > 0 && used + n > 0;
    if (isCounted) parts.push(`${count(used + n)} of ${count(max)} in use`);
    this.#counter.textContent = parts.join(" · ");
    this.#counter.classList.toggle("full", max > 0 && used + n >= max);
  }
}

/** The text of a file; throws one line if it is too large or no text. */
async function textOf(file) {
  if (file.size > FILE_BYTES_MAX) {
    throw new Error(`${file.name} has ${size(file.size)}; at most ${size(FILE_BYTES_MAX)} fit.`);
  }
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text.replaceAll("\r\n", "\n");
  } catch {
    // Said below, for both reasons.
  }
  throw new Error(`${file.name} is not a text file (UTF-8), so that the model cannot read it.`);
}
