// Parts that questions, answers and results have in common: arrows between versions, an editor.

import { element, iconButton, textButton } from "./dom.js";

/** Arrows between the versions of a turn; they are hidden while there is one version only. */
export class VersionArrows {
  #label = element("span", { class: "version" });
  #previous;
  #next;
  #siblings = [];
  #index = 0;

  constructor(pick) {
    this.#previous = iconButton("left", "Previous version", () => this.#pick(pick, -1));
    this.#next = iconButton("right", "Next version", () => this.#pick(pick, 1));
    const about = { class: "versions", role: "group", "aria-label": "Versions", hidden: true };
    this.element = element("div", about, this.#previous, this.#label, this.#next);
  }

  update({ siblings, index }) {
    const hadFocus = this.element.contains(document.activeElement);
    this.#siblings = siblings;
    this.#index = index;
    this.element.hidden = siblings.length < 2;
    this.#label.textContent = `${index + 1} of ${siblings.length}`;
    this.#previous.disabled = index === 0;
    this.#next.disabled = index === siblings.length - 1;
    // A button that is disabled loses the focus; the other one is the only way on.
    if (hadFocus && this.#previous.disabled) this.#next.focus();
    else if (hadFocus && this.#next.disabled) this.#previous.focus();
  }

  #pick(pick, step) {
    pick(this.#siblings[this.#index + step], step);
  }
}

/** A text field that grows with its text: a hidden copy of the text gives it its height. */
export function growingField(attributes) {
  const field = element("textarea", { rows: "1", ...attributes });
  const frame = element("div", { class: "growing" }, field);
  const copy = () => {
    // The field scrolls long before this length, and copying a novel at each key would be slow.
    frame.dataset.text = `${field.value.slice(0, 4000)}\n`;
  };
  field.addEventListener("input", copy);
  const setText = (text) => {
    field.value = text;
    copy();
  };
  return { frame, field, setText };
}

/** A form with one text, in the place of the turn that is edited. */
export function editor({ label, text, saveLabel, onSave, onCancel }) {
  const { frame, field, setText } = growingField({ "aria-label": label });
  const save = () => (field.value.trim() === "" ? field.focus() : onSave(field.value));
  const buttons = element("div", { class: "buttons" },
    textButton(saveLabel, save, { class: "button primary" }), textButton("Cancel", onCancel));
  const form = element("div", { class: "editor" }, frame, buttons);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onCancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      save();
    }
  });
  setText(text);
  // It can have the focus when it is in the page.
  queueMicrotask(() => {
    field.focus();
    field.setSelectionRange(text.length, text.length);
  });
  return form;
}
