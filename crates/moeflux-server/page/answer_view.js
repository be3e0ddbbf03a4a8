// Shows an answer: thoughts folded, text, calls of tools, how far it is, and what can be done.
//
// Invariant: nothing above the end of an answer changes its height while the answer grows, so that
// a person who reads does not lose the line.

import { factsOf, statusOf, troubleOf } from "./answer_words.js";
import { copyWithNotice } from "./code_block.js";
import { element, iconButton, textButton } from "./dom.js";
import { Prose } from "./prose.js";
import { Thoughts } from "./thoughts.js";
import { visibleName } from "./token_list.js";
import { TokenView } from "./token_view.js";
import { ToolCards } from "./tool_cards.js";
import { VersionArrows, editor } from "./turn_parts.js";
import { sentence } from "./words.js";

export class AnswerView {
  #actions;
  #entry = null;
  #prose = new Prose();
  #tokens;
  #views;
  #hasTokens = false;
  #origin = element("p", { class: "origin hint", hidden: true });
  #thoughts = new Thoughts();
  #tools;
  #status = element("div", { class: "status", hidden: true });
  #statusText = element("span");
  #bar = element("progress", { max: "1", "aria-label": "Progress of the prompt" });
  #trouble = element("div", { class: "trouble", hidden: true });
  #facts = element("span", { class: "facts" });
  #foot;
  #textButtons;
  #arrows;
  #editor = null;
  #shownTrouble = "";

  constructor(actions) {
    this.#actions = actions;
    this.#tools = new ToolCards(actions);
    this.#tokens = new TokenView((index, choice) =>
      actions.continueFrom({ turn: this.#entry.turn, index, choice }));
    this.#views = new ViewButtons((hasTokens) => this.#choose(hasTokens));
    this.#arrows = new VersionArrows((id, step) => actions.pick(id, this, step));
    this.#status.append(element("span", { class: "pulse", "aria-hidden": "true" }),
      this.#statusText, this.#bar);
    const copy = iconButton("copy", "Copy this answer", () => {
      copyWithNotice(copy, this.#entry.turn.text);
    });
    const again = iconButton("again", "Answer again", () => {
      actions.regenerate(this.#entry.turn);
    });
    const compare = iconButton("compare", "Compare two answers", () => {
      actions.compare(this.#entry.turn.parent, this.#entry.turn.seed);
    });
    const edit = iconButton("edit", "Edit this answer", () => this.#edit());
    this.#textButtons = [copy, edit];
    this.#foot = element("div", { class: "turn-foot", hidden: true }, this.#arrows.element, copy,
      again, edit, compare, this.#views.element, this.#facts);
    const head = element("h3", { class: "visually-hidden" }, "Answer");
    this.element = element("article", { class: "turn answer" }, head, this.#thoughts.element,
      this.#origin, this.#prose.element, this.#tokens.element, this.#tools.element, this.#status,
      this.#trouble, this.#foot);
  }

  /** `results` is the entry with the results of this answer's calls, or null. */
  update(entry, results) {
    this.#entry = entry;
    const { turn, generation } = entry;
    const isRunning = turn.state === "running";
    this.#prose.set(turn.text, !isRunning);
    this.#showView(turn);
    this.#origin.hidden = !turn.asked?.from;
    if (turn.asked?.from) this.#origin.textContent = originOf(turn.asked.from);
    this.#thoughts.update(turn, generation);
    this.#tools.update({ turn, results, isRunning });
    this.#arrows.update(entry);
    this.#foot.hidden = isRunning;
    for (const button of this.#textButtons) button.hidden = turn.text === "";
    this.element.setAttribute("aria-busy", String(isRunning));
    this.#facts.textContent = isRunning ? "" : factsOf(turn);
    this.tick();
    this.#showTrouble(turn, generation);
  }

  /** Shows times that pass. */
  tick() {
    const { turn, generation } = this.#entry;
    this.#status.hidden = turn.state !== "running";
    if (this.#status.hidden) return;
    const { text, share } = statusOf(generation);
    if (this.#statusText.textContent !== text) this.#statusText.textContent = text;
    this.#bar.hidden = share === null;
    if (share !== null) this.#bar.value = share;
    this.#thoughts.tick(turn, generation);
  }

  #showView({ text, tokens, state, seed, asked, edited }) {
    const canScore = seed !== undefined && asked && (state === "done" || state === "length");
    const isOffered = text !== "" && !edited && (tokens || canScore);
    const isShown = this.#hasTokens && tokens && state !== "running";
    this.#prose.element.hidden = isShown;
    this.#tokens.element.hidden = !isShown;
    this.#views.set({ isOffered, hasTokens: isShown, isKnown: Boolean(tokens) });
    if (isShown) this.#tokens.set(tokens);
  }

  #choose(hasTokens) {
    const { turn } = this.#entry;
    this.#hasTokens = hasTokens;
    if (hasTokens && !turn.tokens) this.#actions.score(turn);
    else this.#showView(turn);
  }

  #showTrouble(turn, generation) {
    const trouble = generation ? null : troubleOf(turn);
    const shown = JSON.stringify(trouble);
    if (shown === this.#shownTrouble) return;
    this.#shownTrouble = shown;
    this.#trouble.hidden = !trouble;
    if (!trouble) return;
    const run = {
      resume: () => this.#actions.resume(this.#entry.turn),
      again: () => this.#actions.regenerate(this.#entry.turn),
      shorten: () => this.#actions.shorten(),
      edit: () => this.#actions.editLast(),
    };
    const buttons = trouble.ways.map(({ label, way }, index) =>
      textButton(label, run[way], { class: index === 0 ? "button primary" : "button" }));
    this.#trouble.classList.toggle("calm", trouble.isCalm);
    this.#trouble.replaceChildren(element("p", {}, sentence(trouble.text)),
      element("div", { class: "buttons" }, ...buttons));
  }

  #edit() {
    if (this.#editor) return;
    const { turn } = this.#entry;
    this.#choose(false);
    const close = () => {
      this.#editor.replaceWith(this.#prose.element);
      this.#editor = null;
    };
    this.#editor = editor({
      label: "Edit this answer",
      text: turn.text,
      saveLabel: "Keep as another version",
      onSave: (text) => {
        close();
        this.#actions.editAnswer(turn, text);
      },
      onCancel: close,
    });
    this.#prose.element.replaceWith(this.#editor);
  }
}

/** Chooses between the text of an answer and its tokens. */
class ViewButtons {
  #text;
  #tokens;

  constructor(choose) {
    const button = (label, hasTokens) =>
      textButton(label, () => choose(hasTokens), { class: "segment" });
    this.#text = button("Text", false);
    this.#tokens = button("Tokens", true);
    this.element = element("span", { class: "segments", role: "group",
      "aria-label": "View of the answer" }, this.#text, this.#tokens);
  }

  set({ isOffered, hasTokens, isKnown }) {
    this.element.hidden = !isOffered;
    this.#text.setAttribute("aria-pressed", String(!hasTokens));
    this.#tokens.setAttribute("aria-pressed", String(Boolean(hasTokens)));
    this.#tokens.title = isKnown ? "Tokens and their probabilities"
      : "Tokens and their probabilities: the answer is computed again";
  }
}

/** Where an answer left another one, and what it cannot have. */
function originOf({ text, token }) {
  const last = text.trimEnd().split(/\s+/).slice(-4).join(" ");
  const place = last === "" ? "from the beginning" : `after “…${last}”`;
  const name = token.trim() || visibleName({ text: token });
  return `Continued ${place} with “${name}”. From there on, thoughts and calls of tools are shown `
    + "as text, and a JSON schema is not enforced.";
}
