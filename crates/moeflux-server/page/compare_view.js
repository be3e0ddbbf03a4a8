// Two answers to one question beside each other, each with settings of its own.
//
// Both are versions of the answer in the conversation from the beginning, so that none is lost; a
// person says which of them is shown. Invariant: what nobody watches any more is stopped.

import { factsOf, statusOf, troubleOf } from "./answer_words.js";
import { openDialog } from "./dialogs.js";
import { element, icon, textButton } from "./dom.js";
import { announce } from "./notices.js";
import { Prose } from "./prose.js";
import { questionText, drawSeed } from "./request.js";
import { EMPTY_SETTINGS, readSettings, settingsLine } from "./settings.js";
import { SettingsForm } from "./settings_dialog.js";
import { Thoughts } from "./thoughts.js";
import { plural, sentence } from "./words.js";

const TICK_MS = 500;
const QUESTION_CHARACTERS_MAX = 400;

export class Compare {
  #talk;
  #props;
  #dialog = null;
  #sides = [];
  #parent = null;
  /** The version that was shown before. */
  #before = null;
  #hasAsked = false;
  #start;
  #stop;
  #verdict;
  #keepsSettings;

  /** `props()` returns what the server says of itself. */
  constructor({ talk, props }) {
    this.#talk = talk;
    this.#props = props;
  }

  /** Opens the view for answers to a turn; the left one begins with the seed, if there is one. */
  open(parent, seed) {
    const question = this.#talk.entry(parent)?.turn;
    if (!question) return;
    this.#parent = parent;
    this.#hasAsked = false;
    this.#before = this.#talk.branch().find(({ turn }) => turn.parent === parent)?.turn.id ?? null;
    const settings = { ...EMPTY_SETTINGS, ...this.#talk.conversation.settings };
    const left = { ...settings, seed: seed === undefined ? settings.seed : String(seed) };
    const side = (name, given) => new Side(name, given, {
      props: this.#props(),
      onKeep: () => this.#keep(name),
    });
    this.#sides = [side("Left", left), side("Right", { ...settings, seed: "" })];
    this.#dialog = openDialog("Compare two answers", [
      element("p", { class: "compared" }, shortened(question)),
      element("div", { class: "sides" }, ...this.#sides.map((it) => it.element)),
      this.#foot(),
    ], { className: "compare", onClose: () => this.#close(timer) });
    const timer = setInterval(() => this.update(), TICK_MS);
    // Escape first stops what comes, as it does elsewhere.
    this.#dialog.addEventListener("cancel", (event) => {
      if (!this.#isRunning()) return;
      event.preventDefault();
      this.#stopBoth();
    });
    this.update();
    this.#start.focus();
  }

  #foot() {
    this.#start = textButton("Ask both", () => this.#ask(), { class: "button primary" });
    this.#stop = element("button", { class: "button", type: "button",
      on: { click: () => this.#stopBoth() } }, icon("stop"), "Stop both");
    this.#verdict = element("span", { class: "hint", role: "status" });
    this.#keepsSettings = element("input", { type: "checkbox", id: "keep-settings" });
    const seeds = textButton("Same seed", () => {
      const [left, right] = this.#sides;
      right.setSeed(left.drawnSeed());
    }, { title: "The right side gets the seed of the left one" });
    return element("div", { class: "compare-foot" }, this.#start, this.#stop, seeds,
      element("label", { class: "check" }, this.#keepsSettings, "Keep its settings, too"),
      this.#verdict);
  }

  async #ask() {
    const wrong = this.#sides.find((side) => !side.isRight());
    if (wrong) {
      wrong.showProblem();
      return;
    }
    this.#hasAsked = true;
    this.#start.disabled = true;
    for (const side of this.#sides) side.begin();
    const ids = await this.#talk.compare(this.#parent, this.#sides.map((side) => side.settings));
    this.#sides.forEach((side, index) => side.setId(ids[index]));
    this.update();
    if (!this.#dialog) this.#stopBoth();
    else this.#stop.focus();
  }

  /** Shows what came since. */
  update() {
    if (!this.#dialog) return;
    const entries = this.#sides.map((side) => side.update(this.#talk));
    const isRunning = this.#isRunning();
    const hadFocus = document.activeElement === this.#stop;
    this.#stop.hidden = !isRunning;
    this.#start.hidden = isRunning;
    this.#start.disabled = false;
    this.#start.textContent = this.#hasAsked ? "Ask both again" : "Ask both";
    if (hadFocus && !isRunning) this.#start.focus();
    const verdict = isRunning ? "" : verdictOf(entries.map((entry) => entry?.turn));
    if (this.#verdict.textContent !== verdict) this.#verdict.textContent = verdict;
  }

  #isRunning() {
    return this.#sides.some(({ id }) => this.#talk.entry(id)?.turn.state === "running");
  }

  #stopBoth() {
    for (const { id } of this.#sides) {
      if (this.#talk.entry(id)?.turn.state === "running") this.#talk.stopAnswer(id);
    }
  }

  async #keep(name) {
    const kept = this.#sides.find((side) => side.name === name);
    this.#before = kept.id;
    if (this.#keepsSettings.checked) await this.#talk.changeSettings(kept.settingsToKeep());
    for (const { id } of this.#sides) if (id !== kept.id) this.#talk.stopAnswer(id);
    this.#hasAsked = false;
    await this.#talk.pick(kept.id);
    this.#dialog.close();
    announce("The answer is in the conversation. The other one is a version of it.");
  }

  async #close(timer) {
    clearInterval(timer);
    this.#dialog = null;
    if (!this.#hasAsked) return;
    this.#stopBoth();
    if (this.#before && this.#talk.entry(this.#before)) await this.#talk.pick(this.#before);
  }
}

class Side {
  name;
  settings;
  id = null;
  #form;
  #isDrawn = false;
  #line = element("small");
  #details;
  #prose = new Prose();
  #thoughts = new Thoughts();
  #calls = element("p", { class: "hint", hidden: true });
  #facts = element("p", { class: "facts" });
  #trouble = element("p", { class: "side-trouble", hidden: true });
  #keep;

  constructor(name, settings, { props, onKeep }) {
    this.name = name;
    this.settings = settings;
    this.#form = new SettingsForm(settings, props, {
      onChange: (changed) => this.#change(changed),
      prefix: name.toLowerCase(),
      isWhole: false,
    });
    this.#keep = textButton(`Keep ${name.toLowerCase()}`, onKeep, { hidden: true });
    // Where the sides are below each other, open settings would hide the second one.
    const isOpen = !matchMedia("(max-width: 760px)").matches;
    this.#details = element("details", { open: isOpen },
      element("summary", {}, "Settings ", this.#line), this.#form.element);
    const id = `side-${name.toLowerCase()}`;
    this.element = element("section", { class: "side", "aria-labelledby": id },
      element("div", { class: "side-head" }, element("h3", { id }, name), this.#keep),
      this.#details, this.#facts, this.#trouble, this.#thoughts.element, this.#prose.element,
      this.#calls);
    this.#change(settings);
  }

  #change(settings) {
    if (settings.seed !== this.settings.seed) this.#isDrawn = false;
    this.settings = settings;
    this.#line.textContent = settingsLine(settings) || "as the model recommends";
  }

  isRight() {
    return Object.keys(readSettings(this.settings).problems).length === 0;
  }

  showProblem() {
    this.#details.open = true;
    this.#form.showProblems();
    this.#form.focusProblem();
  }

  setSeed(seed) {
    this.#form.fill("seed", seed);
  }

  /** The seed; one is drawn if there is none, and shown, so that the answer can be had again. */
  drawnSeed() {
    if (this.settings.seed.trim() === "") {
      this.setSeed(String(drawSeed()));
      this.#isDrawn = true;
    }
    return this.settings.seed;
  }

  /** A seed that nobody typed would make all later answers repeat themselves. */
  settingsToKeep() {
    return this.#isDrawn ? { ...this.settings, seed: "" } : this.settings;
  }

  begin() {
    this.drawnSeed();
    this.#details.open = false;
  }

  setId(id) {
    this.id = id;
    this.#keep.hidden = false;
  }

  /** Shows the answer, and returns its entry, if there is one. */
  update(talk) {
    const entry = this.id === null ? null : talk.entry(this.id);
    if (!entry) return null;
    const { turn, generation } = entry;
    const isRunning = turn.state === "running";
    this.#prose.set(turn.text, !isRunning);
    this.#thoughts.update(turn, generation);
    this.#calls.hidden = turn.calls.length === 0;
    this.#calls.textContent = turn.calls.map(({ name, arguments: text }) =>
      `Calls ${name} with ${text}`).join("\n");
    const facts = isRunning ? statusOf(generation).text : factsOf(turn);
    if (this.#facts.textContent !== facts) this.#facts.textContent = facts;
    const trouble = isRunning ? null : troubleOf(turn);
    this.#trouble.hidden = !trouble;
    this.#trouble.textContent = trouble ? sentence(trouble.text) : "";
    return entry;
  }
}

function shortened(question) {
  if (question.role === "tool") return "After the results of tools";
  const text = questionText(question);
  const characters = Array.from(text);
  if (characters.length <= QUESTION_CHARACTERS_MAX) return text;
  return `${characters.slice(0, QUESTION_CHARACTERS_MAX).join("")}…`;
}

/** Whether both answers are the same, or where their texts part. */
function verdictOf([left, right]) {
  if (!left || !right) return "";
  const others = ({ thoughts, calls }) =>
    JSON.stringify([thoughts, calls.map(({ name, arguments: text }) => [name, text])]);
  if (left.text === right.text) {
    if (others(left) === others(right)) return "Both answers are the same.";
    return "The texts are the same; thoughts or calls of tools differ.";
  }
  let n = 0;
  while (left.text[n] === right.text[n]) n += 1;
  if (n === 0) return "The answers differ from the first character.";
  return `The answers are the same for ${plural(n, "character")}.`;
}
