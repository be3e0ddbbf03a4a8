// Shows a Markdown text that grows.
//
// Invariant: blocks that are complete are made once and stay; only the last one is made again.
// Work is done in slices shorter than a frame, so that a million characters do not stop keys.

import { BlockCutter } from "./blocks.js";
import { CodeBlock } from "./code_block.js";
import { element } from "./dom.js";
import { lexMarkdown, markdownElements } from "./markup.js";

const SLICE_MS = 8;
// Browsers lay out only the chunks in view. More blocks in one cost more as it grows, fewer cost
// more in a long text: 10,000 elements beside each other take a frame to place.
const N_CHUNK_BLOCKS = 32;

export class Prose {
  #cutter = new BlockCutter(lexMarkdown);
  #given = null;
  #text = "";
  #isEnd = false;
  #last = null;
  #code = null;
  #isWaiting = false;
  #chunk = null;

  constructor() {
    this.element = element("div", { class: "prose" });
  }

  /** Sets the whole text so far. `isEnd` says that it will not grow. */
  set(text, isEnd) {
    if (text === this.#given && isEnd === this.#isEnd) return;
    this.#given = text;
    const clean = text.replaceAll("\r\n", "\n");
    if (!clean.startsWith(this.#text) || this.#isEnd) this.#restart();
    this.#text = clean;
    this.#isEnd = isEnd;
    this.#cutter.setText(clean);
    if (!this.#isWaiting) this.#work();
  }

  #restart() {
    this.#cutter = new BlockCutter(lexMarkdown);
    this.#last = null;
    this.#code = null;
    this.#chunk = null;
    this.element.replaceChildren();
  }

  #work() {
    const until = performance.now() + SLICE_MS;
    let isMore = true;
    while (isMore && performance.now() < until) {
      const step = this.#cutter.step(this.#isEnd);
      this.#last?.remove();
      this.#last = null;
      step.done.forEach((block) => this.#add(block));
      if (step.last) this.#showLast(step.last);
      isMore = step.isMore;
    }
    this.#isWaiting = isMore;
    if (isMore) setTimeout(() => this.#work(), 0);
    else if (this.#isEnd) this.#code?.close();
  }

  #add(block) {
    if (block.kind === "markdown") {
      this.#code = null;
      if (block.raw.trim() !== "") this.#append(markdownBlock(block.tokens));
      return;
    }
    if (block.isFirst) {
      this.#code = new CodeBlock(block.language);
      this.#append(this.#code.element);
    }
    this.#code.append(block.text);
    if (block.isClosed) {
      this.#code.close();
      this.#code = null;
    }
  }

  #append(made) {
    if (!this.#chunk || this.#chunk.childElementCount >= N_CHUNK_BLOCKS) {
      this.#chunk = element("div", { class: "chunk" });
      this.element.append(this.#chunk);
    }
    this.#chunk.append(made);
  }

  #showLast(block) {
    if (block.kind === "code") {
      this.#code.setLast(block.text);
    } else if (block.raw.trim() !== "") {
      this.#last = markdownBlock(block.tokens);
      this.#append(this.#last);
    }
  }
}

/** Blocks in an element of their own, so that they can be replaced. */
function markdownBlock(tokens) {
  const block = element("div", { class: "block" });
  block.append(markdownElements(tokens));
  for (const table of block.querySelectorAll("table")) {
    const about = { class: "table", tabindex: "0", role: "region", "aria-label": "Table" };
    const frame = element("div", about);
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of block.querySelectorAll("pre > code:not(.math)")) frameCode(code);
  return block;
}

/** Code inside of a list or a quotation. */
function frameCode(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const framed = new CodeBlock(language);
  framed.append(code.textContent);
  framed.close();
  code.parentElement.replaceWith(framed.element);
}
