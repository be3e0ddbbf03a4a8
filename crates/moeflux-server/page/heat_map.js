// A map of experts by layer: how often each was used, and whether it is in memory.
//
// It is drawn on a canvas, because a large model has tens of thousands of experts. Arrow keys and
// the pointer choose one, which is told in words; the whole is told in words below.

import { element } from "./dom.js";
import { brightness, cell, HEAT_WORDS, isPlace, layout, mix, moved, placeAt, readColour, summary,
  usesMax } from "./heat.js";
import { swatch, write } from "./meters.js";
import { count, percent, plural } from "./words.js";

export class HeatMap {
  element;
  #canvas = element("canvas", {
    class: "heat",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "map",
    "aria-describedby": "heat-summary",
  });
  #title = element("h3", { id: "heat-title" });
  #told = element("p", { class: "told", role: "status" });
  #summary = element("p", { class: "hint", id: "heat-summary" });
  #kept = swatch("kept");
  #away = swatch("away");
  #layers = [];
  #place = null;
  #words = null;

  constructor() {
    const legend = element("ul", { class: "legend" },
      element("li", {}, this.#kept, "In memory"), element("li", {}, this.#away, "On the drive"),
      element("li", {}, "Stronger: used more often"));
    this.element = element("section", { hidden: true, "aria-labelledby": "heat-title" },
      this.#title, legend, this.#canvas, this.#told, this.#summary);
    this.#name(HEAT_WORDS.experts);
    const point = (event) => this.#point(event);
    this.#canvas.addEventListener("pointermove", point);
    this.#canvas.addEventListener("pointerdown", point);
    this.#canvas.addEventListener("pointerleave", ({ pointerType }) => {
      // A finger leaves as soon as it is lifted; what it chose stays.
      if (pointerType === "mouse") this.#choose(null);
    });
    this.#canvas.addEventListener("blur", () => this.#choose(null));
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** No layers hide the map. It is drawn as wide as it is shown, so that its pixels are sharp. */
  set(layers, areLayers = false) {
    this.#layers = layers;
    this.#name(areLayers ? HEAT_WORDS.layers : HEAT_WORDS.experts);
    this.element.hidden = layers.length === 0;
    if (this.element.hidden) return;
    if (this.#place && !isPlace(layers, this.#place)) this.#place = null;
    this.#draw();
    this.#tell();
    const it = summary(layers);
    const hasTenth = it.tenthShare !== null && !areLayers;
    write(this.#summary, `${this.#words.all(it)}: ${count(it.nInMemory)} are in memory, ${
      count(it.nUsed)} were used since the model was loaded.${hasTenth
      ? ` A tenth of them has ${percent(it.tenthShare)} of all uses.` : ""}`);
  }

  #name(words) {
    if (words === this.#words) return;
    this.#words = words;
    write(this.#title, words.title);
    this.#canvas.setAttribute("aria-label", words.label);
    this.#tell();
  }

  #draw() {
    const scale = devicePixelRatio;
    const sizes = layout(this.#layers, Math.round(this.#canvas.clientWidth * scale), scale);
    const { width, height } = sizes;
    if (this.#canvas.width !== width) this.#canvas.width = width;
    if (this.#canvas.height !== height) this.#canvas.height = height;
    const pen = this.#canvas.getContext("2d");
    const [ground, kept, away] = [this.#canvas, this.#kept, this.#away].map((it) =>
      readColour(getComputedStyle(it).backgroundColor));
    const most = usesMax(this.#layers);
    pen.clearRect(0, 0, width, height);
    this.#layers.forEach(({ uses, in_memory: inMemory }, row) => uses.forEach((n, column) => {
      pen.fillStyle = mix(ground, inMemory[column] ? kept : away,
        brightness(n, most, inMemory[column]));
      pen.fillRect(...cell(sizes, { row, column }));
    }));
    if (!this.#place) return;
    pen.strokeStyle = getComputedStyle(this.#canvas).color;
    pen.lineWidth = 2 * scale;
    const [x, y, across, down] = cell(sizes, this.#place);
    pen.strokeRect(x - scale, y - scale, across + 2 * scale, down + 2 * scale);
  }

  #point(event) {
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    const [across, down] = [(event.clientX - left) / width, (event.clientY - top) / height];
    this.#choose(placeAt(this.#layers, across, down));
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const start = this.#place ?? { row: 0, column: 0 };
    const next = moved(this.#layers, start, event.key);
    if (!next) return;
    event.preventDefault();
    this.#choose(this.#place ? next : start);
  }

  #choose(place) {
    const { row, column } = this.#place ?? {};
    if (place?.row === row && place?.column === column) return;
    this.#place = place;
    this.#draw();
    this.#tell();
  }

  #tell() {
    if (!this.#place || !isPlace(this.#layers, this.#place)) {
      return write(this.#told, this.#words.hint);
    }
    const { row, column } = this.#place;
    const { layer, uses, in_memory: inMemory } = this.#layers[row];
    return write(this.#told, `${this.#words.place(layer, column)}: used ${
      plural(uses[column], "time")}, ${inMemory[column] ? "in memory" : "on the drive"}.`);
  }
}
