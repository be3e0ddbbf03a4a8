// Shows a block of code with its language and a button that copies it, while it grows.
//
// Invariant: the text that is shown and copied is the text that was given, to the letter; colours
// come later, and only for blocks that do not take long to colour.

import { copyText, element, icon, textButton } from "./dom.js";
import { highlight, knowsLanguage } from "./highlighting.js";
import { highlightedElements } from "./markup.js";
import { notify } from "./notices.js";

// Larger blocks stay plain: colouring takes about a millisecond for each 1,000 characters.
const COLOURED_CHARACTERS_MAX = 60_000;
// While a block grows it is coloured anew as often as its length allows.
const GROWING_CHARACTERS_MAX = 4_000;

// A long text is shown in parts of this size, so that a browser need not lay out all of it again.
const PART_CHARACTERS = 8_000;

export class CodeBlock {
  #code = element("code");
  #text = "";
  #last = "";
  #language;
  #isColoured = false;
  #isColouring = false;
  #isClosed = false;
  // The text node that grows, and the length of the text before it.
  #part = null;
  #partStart = 0;

  constructor(language) {
    this.#language = language;
    const copy = textButton("Copy", () => copyWithNotice(copy, this.text), { class: "copy" });
    const name = language || "text";
    const about = { tabindex: "0", role: "region", "aria-label": `Code, ${name}` };
    this.element = element("div", { class: "code" },
      element("div", { class: "code-head" }, element("span", {}, name), copy),
      element("pre", about, this.#code));
    this.#showPlain();
  }

  get text() {
    return this.#text + this.#last;
  }

  /** Adds text that does not change any more. */
  append(text) {
    this.#text += text;
    this.setLast("");
  }

  /** Sets the line that may still change. */
  setLast(text) {
    this.#last = text;
    this.#show(GROWING_CHARACTERS_MAX);
  }

  /** The last line break belongs to the fence, not to the code. */
  close() {
    this.#text = this.text.replace(/\n$/, "");
    this.#last = "";
    this.#isClosed = true;
    this.#show(0);
    // Blocks that nobody sees need no colours yet.
    whenSeen(this.element, () => this.#show(COLOURED_CHARACTERS_MAX));
  }

  #show(nCharactersMax) {
    const isColourful = this.text.length <= nCharactersMax && knowsLanguage(this.#language);
    if (!isColourful && this.#isColoured && !this.#isClosed) this.#showPlain();
    if (!this.#isColoured) this.#grow();
    if (isColourful && !this.#isColouring) this.#colour();
  }

  #showPlain() {
    this.#isColoured = false;
    this.#code.replaceChildren();
    this.#partStart = 0;
    this.#newPart();
  }

  #newPart() {
    this.#part = document.createTextNode("");
    this.#code.append(element("span", { class: "part" }, this.#part));
  }

  /** Shows what is new; only the last line can have changed. */
  #grow() {
    const text = this.text;
    for (;;) {
      const isLong = text.length - this.#partStart > PART_CHARACTERS;
      const cut = isLong ? text.indexOf("\n", this.#partStart + PART_CHARACTERS - 1) + 1 : 0;
      const isCut = cut > 0 && cut <= this.#text.length;
      const shown = text.slice(this.#partStart, isCut ? cut : undefined);
      if (this.#part.data !== shown) this.#part.data = shown;
      if (!isCut) return;
      this.#partStart = cut;
      this.#newPart();
    }
  }

  async #colour() {
    const text = this.text;
    this.#isColouring = true;
    const html = await highlight(text, this.#language);
    this.#isColouring = false;
    if (html === null) return;
    if (text === this.text) {
      this.#isColoured = true;
      this.#code.replaceChildren(highlightedElements(html));
    } else {
      this.#show(this.#isClosed ? COLOURED_CHARACTERS_MAX : GROWING_CHARACTERS_MAX);
    }
  }
}

const seen = new WeakMap();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    seen.get(target)();
  }
}, { rootMargin: "400px" });

/** Runs once, when the element comes near to what is in view. */
function whenSeen(target, run) {
  seen.set(target, run);
  observer.observe(target);
}

/** Copies, and says so on the button. */
export async function copyWithNotice(button, text) {
  try {
    await copyText(text);
  } catch (error) {
    notify(`Could not copy: ${error.message}`);
    return;
  }
  const before = [...button.childNodes];
  const label = button.getAttribute("aria-label");
  button.replaceChildren(button.classList.contains("icon-button") ? icon("check") : "Copied");
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.replaceChildren(...before);
    if (label) button.setAttribute("aria-label", label);
    else button.removeAttribute("aria-label");
  }, 1500);
}
