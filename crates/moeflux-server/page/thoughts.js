// Shows the thoughts before an answer, folded.

import { element } from "./dom.js";
import { Prose } from "./prose.js";
import { duration, plural } from "./words.js";

export class Thoughts {
  #prose = null;
  #title = element("span");
  #text = "";
  #isEnd = false;

  constructor() {
    const summary = element("summary", {}, this.#title);
    this.element = element("details", { class: "thoughts", hidden: true }, summary);
    this.element.addEventListener("toggle", () => this.#show());
  }

  update(turn, generation) {
    this.element.hidden = turn.thoughts === "";
    this.#text = turn.thoughts;
    this.#isEnd = turn.state !== "running";
    this.tick(turn, generation);
    this.#show();
  }

  tick(turn, generation) {
    const title = thoughtsTitle(turn, generation);
    if (this.#title.textContent !== title) this.#title.textContent = title;
  }

  /** Thoughts that nobody reads are not rendered. */
  #show() {
    if (!this.element.open || this.element.hidden) return;
    if (!this.#prose) {
      this.#prose = new Prose();
      this.element.append(this.#prose.element);
    }
    this.#prose.set(this.#text, this.#isEnd);
  }
}

function thoughtsTitle(turn, generation) {
  if (generation && generation.textMs === null && generation.firstMs !== null) {
    return `Thinking, ${duration((performance.now() - generation.firstMs) / 1000)}`;
  }
  const parts = [];
  if (turn.usage?.thoughts) parts.push(plural(turn.usage.thoughts, "token"));
  if (turn.seconds?.thoughts) parts.push(duration(turn.seconds.thoughts));
  if (parts.length === 0) parts.push(plural(turn.thoughts.length, "character"));
  return `Thoughts · ${parts.join(", ")}`;
}
