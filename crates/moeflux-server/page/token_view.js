// Shows an answer as its tokens, with the probability of each and what else was likely.
//
// A token is chosen by a click, a tap or the arrow keys, and pointed at until then; its numbers are
// below the text. Invariant: how unsure the model was is told by a line under the token and in
// words, not by a colour alone.

import { drawn, element } from "./dom.js";
import { N_WITH_TOP_MAX, choicesAt, classOf, logprobText, nameOf, obstacle, probabilityText,
  spokenName, visibleName } from "./token_list.js";
import { count } from "./words.js";

const HINT = "Point at a token, or choose one with a click or the arrow keys.";
const LEGEND = [["likely", "50 to 90 %"], ["open", "10 to 50 %"], ["rare", "under 10 %"]];
const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "first",
  End: "last" };

export class TokenView {
  element;
  #tokens = null;
  #places = [];
  #focused = 0;
  #chosen = null;
  #clicked = null;
  #list = element("div", { class: "token-text", role: "listbox", "aria-label": "Tokens",
    "aria-orientation": "horizontal" });
  #panel;

  /** `onContinue(index, choice)` lets the answer go on with a choice at the place of a token. */
  constructor(onContinue) {
    this.#panel = new TokenPanel(onContinue);
    const items = LEGEND.map(([key, label]) => element("li", {},
      element("span", { class: `token ${key}`, "aria-hidden": "true" }, "token"), label));
    this.element = element("div", { class: "tokens", hidden: true },
      element("ul", { class: "token-legend", "aria-label": "Marks of probability" }, ...items),
      this.#list, this.#panel.element);
    this.#list.addEventListener("pointerover", (event) => this.#point(event));
    this.#list.addEventListener("pointerleave", () => this.#show(this.#chosen));
    this.#list.addEventListener("click", ({ target }) => this.#click(placeOf(target)));
    this.#list.addEventListener("keydown", (event) => this.#key(event));
    this.#list.addEventListener("focusin", ({ target }) => this.#choose(placeOf(target)));
  }

  set(tokens) {
    if (tokens === this.#tokens) return;
    this.#tokens = tokens;
    this.#places = tokens.map(tokenElement);
    this.#list.replaceChildren(...this.#places);
    this.#focused = 0;
    this.#chosen = null;
    this.#places[0]?.setAttribute("tabindex", "0");
    this.#show(null);
  }

  #point({ target, pointerType }) {
    const index = placeOf(target);
    if (pointerType === "mouse" && this.#chosen === null && index !== null) this.#show(index);
  }

  /** A second click lets go of a token. */
  #click(index) {
    if (index === null) return;
    const isSecond = index === this.#clicked;
    this.#choose(isSecond ? null : index);
    this.#clicked = isSecond ? null : index;
    if (!isSecond) this.#places[index].focus({ preventScroll: true });
  }

  #choose(index) {
    if (index === this.#chosen) return;
    this.#clicked = null;
    if (this.#chosen !== null) this.#places[this.#chosen].setAttribute("aria-selected", "false");
    this.#chosen = index;
    if (index !== null) {
      this.#places[this.#focused].setAttribute("tabindex", "-1");
      this.#focused = index;
      const place = this.#places[index];
      place.setAttribute("tabindex", "0");
      place.setAttribute("aria-selected", "true");
      const { logprob, text, bytes, own } = this.#tokens[index];
      place.setAttribute("aria-label",
        `${spokenName({ text: own ?? text, bytes })}, ${probabilityText(logprob)}`);
    }
    this.#show(index);
  }

  #show(index) {
    this.#panel.set(this.#tokens, index);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape" && this.#chosen !== null) {
      // The page would stop an answer or close a view.
      event.stopPropagation();
      this.#choose(null);
      return;
    }
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = this.#stepped(step);
    if (next !== null) this.#places[next].focus();
  }

  #stepped(step) {
    const last = this.#places.length - 1;
    if (step === "first") return 0;
    if (step === "last") return last;
    if (step === 1 || step === -1) return Math.min(last, Math.max(0, this.#focused + step));
    return this.#onOtherLine(step === "down" ? 1 : -1);
  }

  /** The token on the next line that is nearest to the chosen one, as the eye sees it. */
  #onOtherLine(direction) {
    const middle = ({ left, right }) => (left + right) / 2;
    const from = this.#places[this.#focused].getBoundingClientRect();
    let best = null;
    let line = null;
    for (let index = this.#focused + direction; index in this.#places; index += direction) {
      const box = this.#places[index].getClientRects()[0];
      if (!box || (box.top - from.top) * direction < from.height / 2) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > from.height / 2) break;
      const distance = Math.abs(middle(box) - middle(from));
      if (best === null || distance < best.distance) best = { index, distance };
    }
    return best?.index ?? null;
  }
}

function tokenElement(token, index) {
  const about = { class: `token ${classOf(token.logprob)}`, role: "option", tabindex: "-1",
    "aria-selected": "false", "data-index": String(index) };
  // A line break is a sign and then the break; a token without a text has its name.
  if (token.text !== "") return element("span", about, token.text.replaceAll("\n", "↵\n"));
  about.class += " marker";
  return element("span", about, visibleName({ text: nameOf(token), bytes: token.bytes }));
}

function placeOf(target) {
  const index = target.closest?.(".token")?.dataset.index;
  return index === undefined ? null : Number(index);
}

/** The numbers of a token, and the ways on from it. */
class TokenPanel {
  #onContinue;
  #shown = null;

  constructor(onContinue) {
    this.#onContinue = onContinue;
    this.element = element("div", { class: "token-panel", role: "region",
      "aria-label": "Probabilities" });
  }

  set(tokens, index) {
    const shown = index === null ? null : tokens[index];
    if (shown === this.#shown && this.element.childElementCount > 0) return;
    this.#shown = shown;
    if (!shown) {
      this.element.replaceChildren(element("p", { class: "hint" }, HINT));
      return;
    }
    const choices = choicesAt(shown);
    const title = (text) => element("th", { scope: "col" }, text);
    const head = [title("Token"), title("Probability"), element("td", { class: "bar-place" }),
      title("Log-probability"), element("td")];
    const rows = choices.map((choice) => this.#row(tokens, index, choice));
    const parts = [element("table", {}, element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...rows))];
    if (shown.top.length === 0) parts.push(element("p", { class: "hint" }, withoutTop(index)));
    this.element.replaceChildren(...parts);
  }

  #row(tokens, index, choice) {
    const name = element("th", { scope: "row" }, element("code", {}, visibleName(choice)),
      choice.isChosen ? element("small", {}, "chosen") : null);
    const why = obstacle(tokens, index, choice);
    const way = why ? element("small", {}, why) : element("button", {
      type: "button",
      class: "button small",
      "aria-label": `Continue from here with ${spokenName(choice)}`,
      on: { click: () => this.#onContinue(index, choice) },
    }, "Continue", element("span", { class: "when-wide" }, " from here"));
    return element("tr", { class: choice.isChosen ? "chosen" : null }, name,
      element("td", { class: "number" }, probabilityText(choice.logprob)),
      element("td", { class: "bar-place" }, bar(choice.logprob)),
      element("td", { class: "number" }, logprobText(choice.logprob)), element("td", {}, way));
  }
}

function withoutTop(index) {
  if (index < N_WITH_TOP_MAX) return "The server told no alternatives.";
  return `Alternatives are kept for the first ${count(N_WITH_TOP_MAX)} tokens of an answer.`;
}

function bar(logprob) {
  const share = logprob === null ? 0 : Math.exp(logprob);
  const whole = { x: "0", y: "0", height: "100%" };
  return drawn("svg", { class: "token-bar", "aria-hidden": "true" },
    drawn("rect", { ...whole, width: "100%", class: "ground" }),
    drawn("rect", { ...whole, width: `${(share * 100).toFixed(2)}%`, class: "fill" }));
}
