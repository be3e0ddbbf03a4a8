// Shows an answer: thoughts folded, text, calls of tools, how far it is, and what can be done.
//
// Invariant: nothing above the end of an answer changes its height while the answer grows, so that
// a person who reads does not lose the line.

import { copyWithNotice } from "./code_block.js";
import { element, iconButton, textButton } from "./dom.js";
import { Prose } from "./prose.js";
import { lineOf, shareOf } from "./tasks.js";
import { ToolCards } from "./tool_cards.js";
import { VersionArrows, editor } from "./turn_parts.js";
import { about, count, duration, plural, rate, sentence } from "./words.js";

export class AnswerView {
  #actions;
  #entry = null;
  #prose = new Prose();
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
    this.#arrows = new VersionArrows((id, step) => actions.pick(id, this, step));
    this.#status.append(element("span", { class: "pulse", "aria-hidden": "true" }),
      this.#statusText, this.#bar);
    const copy = iconButton("copy", "Copy this answer", () => {
      copyWithNotice(copy, this.#entry.turn.text);
    });
    const again = iconButton("again", "Answer again", () => {
      actions.regenerate(this.#entry.turn);
    });
    const edit = iconButton("edit", "Edit this answer", () => this.#edit());
    this.#textButtons = [copy, edit];
    this.#foot = element("div", { class: "turn-foot", hidden: true }, this.#arrows.element, copy,
      again, edit, this.#facts);
    const head = element("h3", { class: "visually-hidden" }, "Answer");
    this.element = element("article", { class: "turn answer" }, head, this.#thoughts.element,
      this.#prose.element, this.#tools.element, this.#status, this.#trouble, this.#foot);
  }

  /** `results` is the entry with the results of this answer's calls, or null. */
  update(entry, results) {
    this.#entry = entry;
    const { turn, generation } = entry;
    const isRunning = turn.state === "running";
    this.#prose.set(turn.text, !isRunning);
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

class Thoughts {
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

/** What an answer is waiting for, and how far that is (0 to 1, or null). */
function statusOf(generation) {
  if (!generation) return { text: "Another tab receives this answer.", share: null };
  const waited = (performance.now() - generation.startedMs) / 1000;
  const since = waited >= 2 ? `, ${duration(waited)}` : "";
  const { phase, progress } = generation;
  if (phase === "changing") {
    const { change } = generation;
    return { text: `The answer follows. ${lineOf(change)}`, share: shareOf(change) };
  }
  if (phase === "loading") {
    return { text: `The server is loading the model. The answer follows${since}`, share: null };
  }
  if (phase === "busy") return { text: `The server is busy. Trying again${since}`, share: null };
  if (phase === "again") {
    const percent = Math.floor(generation.share * 100);
    return { text: `Computing the kept part again: ${percent} %`, share: generation.share };
  }
  if (phase === "answering") {
    const seconds = (performance.now() - generation.firstMs) / 1000;
    const speed = seconds > 0.5 ? rate(generation.nPieces, seconds) : "";
    return { text: speed ? `${plural(generation.nPieces, "token")} · ${speed}` : "", share: null };
  }
  if (!progress) return { text: `Reading the prompt${since}`, share: null };
  const left = secondsLeft(progress);
  const parts = [`Reading the prompt: ${count(progress.processed)} of ${
    plural(progress.total, "token")}`];
  if (left !== null) parts.push(`${about(left)} left`);
  return { text: parts.join(" · "), share: progress.processed / progress.total };
}

/** What the server expects, or what follows from its rate so far. */
function secondsLeft({ seconds_left: left, time_ms: time, processed, cache = 0, total }) {
  if (Number.isFinite(left)) return left;
  const nRead = processed - cache;
  if (!(time > 500) || nRead <= 0) return null;
  return (time / 1000) * ((total - processed) / nRead);
}

function factsOf(turn) {
  if (turn.edited) return "edited";
  const parts = [];
  const { usage, seconds, nPieces = 0 } = turn;
  const nTokens = usage?.answer ?? nPieces;
  if (nTokens > 0) parts.push(plural(nTokens, "token"));
  if (seconds?.answer) parts.push(rate(nTokens, seconds.answer));
  if (seconds?.first) parts.push(`first after ${duration(seconds.first)}`);
  if (usage?.prompt) {
    const cached = usage.cached ? `, ${count(usage.cached)} cached` : "";
    parts.push(`prompt ${plural(usage.prompt, "token")}${cached}`);
  }
  return parts.filter((part) => part !== "").join(" · ");
}

/** What went wrong with an answer, in one line, and the ways on. */
function troubleOf({ state, error, seed, asked }) {
  const resume = seed !== undefined && asked ? [{ label: "Continue", way: "resume" }] : [];
  const again = { label: "Answer again", way: "again" };
  const retry = { label: "Try again", way: "again" };
  if (state === "stopped") return { text: "Stopped.", ways: [...resume, again], isCalm: true };
  if (state === "length") {
    const text = "The answer reached its limit of tokens.";
    return { text, ways: [...resume, again], isCalm: true };
  }
  if (state === "cut") {
    const text = error?.message ?? "A part of the answer is missing.";
    return { text, ways: [...resume, again], isCalm: false };
  }
  if (state !== "failed") return null;
  if (!error) return { text: "Stopped before it began.", ways: [retry], isCalm: true };
  const edit = { label: "Edit the message", way: "edit" };
  if (error.kind === "length") {
    const shorten = { label: "Leave out the oldest turns", way: "shorten" };
    return { text: error.message, ways: [shorten, edit], isCalm: false };
  }
  return { text: error.message, ways: [retry, edit], isCalm: false };
}
