// Numbers with a bar, and one bar of several parts.
//
// The bars are drawings: the policy of the page forbids styles, and a drawing may say its sizes.
// Each number is in the text too, so that nothing depends on seeing a bar.

import { drawn, element } from "./dom.js";

const whole = { x: "0", y: "0", height: "100%" };

/** A line with a name, a value and, if `hasBar`, a bar below them. */
export class Meter {
  element;
  #label = element("dt", {});
  #value = element("span", { class: "value" });
  #note = element("span", { class: "note" });
  #bar = null;
  #fill = drawn("rect", { ...whole, width: "0%", class: "fill" });

  constructor(label, { hasBar = false, className = "" } = {}) {
    const parts = [this.#value, this.#note];
    if (hasBar) {
      const ground = drawn("rect", { ...whole, width: "100%", class: "ground" });
      const about = { class: `meter ${className}`, "aria-hidden": "true" };
      this.#bar = drawn("svg", about, ground, this.#fill);
      parts.push(this.#bar);
    }
    this.name(label);
    this.element = element("div", { class: "measure" }, this.#label, element("dd", {}, ...parts));
  }

  name(label) {
    write(this.#label, label);
  }

  /** A bar whose share is null is left out. */
  set(text, { share = null, note = "" } = {}) {
    write(this.#value, text);
    write(this.#note, note);
    if (!this.#bar) return;
    this.#bar.toggleAttribute("hidden", share === null);
    if (share !== null) setWidth(this.#fill, share);
  }
}

/** A bar of parts, with a list that names them; `keys` are classes of colours. */
export class StackedBar {
  element;
  #rects;
  #list = element("ul", { class: "legend" });
  #items = new Map();

  constructor(keys) {
    this.#rects = new Map(keys.map((key) => [key, drawn("rect", { ...whole, class: key })]));
    const ground = drawn("rect", { ...whole, width: "100%", class: "ground" });
    const bar = drawn("svg", { class: "meter stacked", "aria-hidden": "true" }, ground,
      ...this.#rects.values());
    this.element = element("div", { class: "stack" }, bar, this.#list);
  }

  /** `parts` are of the form `{key, label, share, text}`. */
  set(parts) {
    let start = 0;
    for (const { key, label, share, text } of parts) {
      const rect = this.#rects.get(key);
      rect.setAttribute("x", percentage(start));
      setWidth(rect, share);
      start += share;
      const { name, value } = this.#item(key);
      write(name, label);
      write(value, text);
    }
  }

  #item(key) {
    if (!this.#items.has(key)) {
      const [name, value] = [element("span", {}), element("span", { class: "value" })];
      this.#list.append(element("li", {}, swatch(key), name, value));
      this.#items.set(key, { name, value });
    }
    return this.#items.get(key);
  }
}

export function swatch(key) {
  return element("span", { class: `swatch ${key}`, "aria-hidden": "true" });
}

/** Changes a text only if it is another one: a page that stands still is not laid out again. */
export function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function setWidth(rect, share) {
  rect.setAttribute("width", percentage(Math.min(1, Math.max(0, share))));
}

function percentage(share) {
  return `${(share * 100).toFixed(2)}%`;
}
