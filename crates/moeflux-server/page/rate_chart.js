// A line of the tokens per second of the last two minutes.

import { drawn, element } from "./dom.js";
import { write } from "./meters.js";
import { tokenRate } from "./words.js";

const [WIDTH, HEIGHT] = [240, 56];
// A scale that is never finer than this does not turn one token into a mountain.
const TOP_MIN = 1;

export class RateChart {
  element;
  #area = drawn("path", { class: "area" });
  #line = drawn("path", { class: "line" });
  #top = element("span", {});
  #drawing;

  constructor() {
    const about = {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      class: "chart",
      role: "img",
    };
    this.#drawing = drawn("svg", about, this.#area, this.#line);
    this.element = element("div", { class: "rate-chart" }, this.#top, this.#drawing,
      element("p", { class: "axis" }, element("span", {}, "2 minutes ago"),
        element("span", {}, "now")));
  }

  /** `rates` are oldest first, null where nothing is known. */
  set(rates) {
    const known = rates.filter((it) => it !== null);
    const top = Math.max(TOP_MIN, ...known);
    const points = rates.flatMap((rate, index) => (rate === null ? [] : [
      `${((index * WIDTH) / (rates.length - 1)).toFixed(1)} ${(HEIGHT - 1 - (rate / top)
        * (HEIGHT - 3)).toFixed(1)}`]));
    const start = WIDTH - ((points.length - 1) * WIDTH) / (rates.length - 1);
    const line = points.length > 1 ? `M${points.join("L")}` : "";
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", line && `${line}V${HEIGHT}H${start.toFixed(1)}z`);
    write(this.#top, known.some((it) => it > 0) ? `Highest: ${tokenRate(Math.max(...known))}` : "");
    this.#drawing.setAttribute("aria-label", `Tokens per second in the last two minutes: now ${
      tokenRate(rates.at(-1))}, at most ${tokenRate(known.length > 0 ? top : null)}`);
  }
}
