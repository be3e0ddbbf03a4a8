// Shows the calls of an answer as cards: name, arguments, and the result that a person gives.
//
// moeflux runs no tools: a result is typed or pasted. When every call has one, they are sent
// together and the conversation goes on.

import { CodeBlock } from "./code_block.js";
import { element, icon, iconButton, textButton } from "./dom.js";
import { VersionArrows, growingField } from "./turn_parts.js";

export class ToolCards {
  #actions;
  #cards = [];
  #arrows;
  #send;
  #hint = element("p", { class: "hint" });
  #turn = null;
  #results = null;
  #shown = "";

  constructor(actions) {
    this.#actions = actions;
    this.#arrows = new VersionArrows((id, step) => actions.pick(id, null, step));
    this.#send = textButton("Send results", () => this.#submit(), { class: "button primary" });
    this.list = element("div", { class: "tool-list" });
    const foot = element("div", { class: "buttons" }, this.#send, this.#arrows.element);
    this.element = element("div", { class: "tools", hidden: true }, this.list, this.#hint, foot);
  }

  /** `results` is the entry of the branch with the results of these calls, or null. */
  update({ turn, results, isRunning }) {
    this.#turn = turn;
    this.#results = results?.turn.results ?? null;
    const calls = turn.calls ?? [];
    this.element.hidden = calls.length === 0;
    this.#arrows.element.hidden = true;
    if (results) this.#arrows.update(results);
    const shown = JSON.stringify([calls, results?.turn.id, isRunning]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#cards = calls.map((call, index) =>
      this.#card(call, results?.turn.results[index] ?? null, isRunning));
    this.list.replaceChildren(...this.#cards.map((card) => card.element));
    const isOpen = !results && !isRunning && calls.length > 0;
    this.#setOpen(isOpen);
  }

  #setOpen(isOpen) {
    this.#send.hidden = !isOpen;
    this.#send.textContent = this.#cards.length > 1 ? "Send results" : "Send result";
    this.#hint.hidden = !isOpen;
    this.#hint.textContent = "moeflux runs no tools: type or paste what the tool returns.";
  }

  #card(call, result, isRunning) {
    const code = new CodeBlock("json");
    code.append(pretty(call.arguments));
    if (!isRunning) code.close();
    const head = element("div", { class: "tool-head" }, icon("tool"),
      element("strong", {}, call.name || "…"), element("span", {}, "asks to be called"));
    const card = element("section", { class: "tool", "aria-label": `Call of ${call.name}` }, head,
      code.element);
    if (isRunning) return { element: card };
    if (result) {
      card.append(this.#given(result));
      return { element: card };
    }
    const field = this.#resultField(call.name, "");
    card.append(field.frame);
    return { element: card, field: field.field };
  }

  #given(result) {
    const block = new CodeBlock(looksLikeJson(result.content) ? "json" : "");
    block.append(result.content);
    block.close();
    const edit = iconButton("edit", "Give another result", () => this.#reopen());
    const label = element("div", { class: "result-head" }, element("span", {}, "Result"), edit);
    return element("div", { class: "result" }, label, block.element);
  }

  #resultField(name, text) {
    const { frame, field, setText } = growingField({
      "aria-label": `Result of ${name}`,
      placeholder: "Result",
      class: "mono",
    });
    setText(text);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#submit();
    });
    return { frame, field };
  }

  /** Lets a person give other results, which become another branch. */
  #reopen() {
    this.#cards.forEach((card, index) => {
      const given = card.element.querySelector(".result");
      const { name } = this.#turn.calls[index];
      const { frame, field } = this.#resultField(name, this.#results[index]?.content ?? "");
      given.replaceWith(frame);
      card.field = field;
    });
    this.#setOpen(true);
    this.#cards[0].field.focus();
  }

  #submit() {
    if (!this.#actions.isReady()) return;
    const missing = this.#cards.find(({ field }) => field.value === "");
    if (missing) {
      missing.field.focus();
      this.#hint.textContent = "Each call needs a result.";
      return;
    }
    const results = this.#turn.calls.map(({ id, name }, index) =>
      ({ id, name, content: this.#cards[index].field.value }));
    this.#actions.giveResults(this.#turn, results);
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Arguments that are not complete yet are shown as they came.
    return text;
  }
}

function looksLikeJson(text) {
  return /^\s*[[{]/.test(text);
}
