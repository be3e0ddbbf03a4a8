// A line of the time of one token: a part for each layer, divided into computing and waiting.
//
// Arrow keys and the pointer choose a layer, which is told in words; the whole is told in words
// above. Invariant: while a layer is chosen, the line stays that of one token, because the next
// one would change the words that a person reads. The newest is shown when nothing is chosen.

import { drawn, element } from "./dom.js";
import { swatch, write } from "./meters.js";
import { movedPart, partAt, partSentence, ticks, tokenSentence } from "./token_times.js";

const HINT = "Point at a layer, or go to it with the arrow keys.";
const HATCH = "time-line-hatch";
const HATCH_WIDTH = 5;
const all = { y: "0", height: "100%" };
// From this share on, the text of a tick would leave the line at its right end.
const LAST_TEXT = 0.92;
// With more layers, lines between them would hide what is narrow.
const N_BETWEEN_MAX = 64;

export class TimeLine {
  element;
  #parts = drawn("g");
  #chosen = drawn("rect", { ...all, class: "chosen" });
  #line;
  #scale = drawn("svg", { class: "time-scale", "aria-hidden": "true" });
  #summary = element("p", { class: "told", id: "time-line-summary" });
  #told = element("p", { class: "told", role: "status" }, HINT);
  #times = null;
  #newest = null;
  #areLayers = false;
  #index = null;

  constructor() {
    this.#line = drawn("svg", {
      class: "time-line",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "time line",
      "aria-label": "Time of the last token by layer",
      "aria-describedby": "time-line-summary",
    }, drawn("defs", {}, hatch()), this.#parts, this.#chosen);
    const legend = element("ul", { class: "legend" },
      element("li", {}, swatch("computing"), "Computing"),
      element("li", {}, swatch("waiting"), "Waiting for the drive"));
    this.element = element("section", { hidden: true, "aria-labelledby": "time-line-title" },
      element("h3", { id: "time-line-title" }, "Layers of one token"), this.#summary, legend,
      this.#line, this.#scale, this.#told);
    const point = (event) => this.#point(event);
    this.#line.addEventListener("pointermove", point);
    this.#line.addEventListener("pointerdown", point);
    this.#line.addEventListener("pointerleave", ({ pointerType }) => {
      // A finger leaves as soon as it is lifted; what it chose stays.
      if (pointerType === "mouse") this.#choose(null);
    });
    this.#line.addEventListener("blur", () => this.#choose(null));
    this.#line.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Times of `tokenTimes`; null hides the line. */
  set(times, areLayers = false) {
    this.#newest = times;
    this.#areLayers = areLayers;
    const isSameModel = times?.parts.length === this.#times?.parts.length;
    if (this.#index !== null && isSameModel) return;
    this.#index = null;
    this.#showNewest();
  }

  #showNewest() {
    const isNew = this.#times !== this.#newest;
    this.#times = this.#newest;
    this.element.hidden = this.#times === null;
    if (this.#times && isNew) this.#draw();
    this.#mark();
  }

  #draw() {
    const { parts, seconds } = this.#times;
    write(this.#summary, tokenSentence(this.#times));
    this.#parts.replaceChildren(...parts.flatMap(({ start, computeShare, waitShare }) => [
      box(start, computeShare, { class: "computing" }),
      box(start + computeShare, waitShare, { class: "waiting-ground" }),
      box(start + computeShare, waitShare, { fill: `url(#${HATCH})`, class: "waiting" }),
    ]), ...(parts.length > N_BETWEEN_MAX ? [] : parts.slice(1).map(({ start }) =>
      drawn("line", { class: "between", ...across(start), y1: "0", y2: "100%" }))));
    this.#scale.replaceChildren(...ticks(seconds).flatMap(({ share, text }) => [
      drawn("line", { ...across(share), y1: "0", y2: "4" }),
      drawn("text", { x: percentage(share), y: "17", "text-anchor": anchor(share) }, text),
    ]));
  }

  #point({ clientX, pointerType }) {
    const { left, width } = this.#line.getBoundingClientRect();
    const index = partAt(this.#times, (clientX - left) / width);
    // A finger that is at the rim of the line means its end.
    if (index !== null || pointerType === "mouse") this.#choose(index);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const next = movedPart(this.#times, this.#index ?? 0, event.key);
    if (next === null) return;
    event.preventDefault();
    this.#choose(this.#index === null && event.key.startsWith("Arrow") ? 0 : next);
  }

  #choose(index) {
    if (index === this.#index) return;
    this.#index = index;
    if (index === null) this.#showNewest();
    else this.#mark();
  }

  #mark() {
    const part = this.#index === null ? null : this.#times.parts[this.#index];
    this.#chosen.toggleAttribute("hidden", part === null);
    write(this.#told, part ? partSentence(part, this.#areLayers) : HINT);
    if (!part) return;
    this.#chosen.setAttribute("x", percentage(part.start));
    this.#chosen.setAttribute("width", percentage(part.computeShare + part.waitShare));
  }
}

function hatch() {
  const about = {
    id: HATCH,
    width: String(HATCH_WIDTH),
    height: String(HATCH_WIDTH),
    patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)",
  };
  const line = { x1: "1", x2: "1", y1: "0", y2: String(HATCH_WIDTH), class: "hatch" };
  return drawn("pattern", about, drawn("line", line));
}

function box(start, share, attributes) {
  return drawn("rect", { ...all, x: percentage(start), width: percentage(share), ...attributes });
}

function across(share) {
  return { x1: percentage(share), x2: percentage(share) };
}

function anchor(share) {
  if (share === 0) return "start";
  return share > LAST_TEXT ? "end" : "middle";
}

function percentage(share) {
  return `${(share * 100).toFixed(3)}%`;
}
