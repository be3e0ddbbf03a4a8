// Shows a question: its text as it was typed, and its files folded.

import { copyWithNotice } from "./code_block.js";
import { element, icon, iconButton, textButton } from "./dom.js";
import { VersionArrows, editor } from "./turn_parts.js";
import { count, plural, size } from "./words.js";

// Longer questions show their beginning until a person asks for the rest.
const SHOWN_CHARACTERS = 1_500;

export class QuestionView {
  #actions;
  #turn = null;
  #text = element("div", { class: "bubble" });
  #files = element("ul", { class: "files" });
  #body;
  #arrows;
  #foot;
  #editor = null;

  constructor(actions) {
    this.#actions = actions;
    this.#arrows = new VersionArrows((id, step) => actions.pick(id, this, step));
    const copy = iconButton("copy", "Copy this message", () => {
      copyWithNotice(copy, this.#turn.text);
    });
    this.#foot = element("div", { class: "turn-foot" }, this.#arrows.element, copy,
      iconButton("compare", "Compare two answers", () => actions.compare(this.#turn.id)),
      iconButton("edit", "Edit this message", () => this.edit()));
    this.#body = element("div", { class: "question-body" }, this.#files, this.#text, this.#foot);
    const head = element("h3", { class: "visually-hidden" }, "You");
    this.element = element("article", { class: "turn question" }, head, this.#body);
  }

  update({ turn, siblings, index }) {
    this.#arrows.update({ siblings, index });
    if (this.#turn === turn) return;
    this.#turn = turn;
    this.#showText(turn.text.length <= SHOWN_CHARACTERS * 1.5);
    this.#files.replaceChildren(...(turn.files ?? []).map(fileEntry));
    this.#files.hidden = !turn.files?.length;
  }

  #showText(isWhole) {
    const { text } = this.#turn;
    this.#text.hidden = text === "";
    this.#text.textContent = isWhole ? text : `${text.slice(0, SHOWN_CHARACTERS)}…`;
    if (isWhole) return;
    const label = `Show all ${count(text.length)} characters`;
    this.#text.append(textButton(label, () => this.#showText(true), { class: "button quiet" }));
  }

  edit() {
    if (this.#editor) return;
    const close = () => {
      this.#editor.replaceWith(this.#body);
      this.#editor = null;
    };
    this.#editor = editor({
      label: "Edit your message",
      text: this.#turn.text,
      saveLabel: "Send",
      onSave: (text) => {
        if (!this.#actions.isReady()) return;
        close();
        this.#actions.editQuestion(this.#turn, text);
      },
      onCancel: () => {
        close();
        this.#foot.querySelector("button:last-child").focus();
      },
    });
    this.#body.replaceWith(this.#editor);
  }
}

function fileEntry({ name, text }) {
  const lines = plural(text.split("\n").length, "line");
  const summary = element("summary", {}, icon("file"), element("span", {}, name),
    element("small", {}, `${size(new Blob([text]).size)}, ${lines}`));
  const details = element("details", { class: "file" }, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(element("pre", { tabindex: "0", role: "region", "aria-label": name }, text));
    }
  });
  return element("li", {}, details);
}
