// Shows what the server does to its models: a panel in the list, and one line below a conversation.
//
// Both show the task that they are given and call back; numbers that move are not read aloud.

import { element, icon, iconButton, textButton } from "./dom.js";
import { write } from "./meters.js";
import { factsOf, isRunning, lineOf, shareOf, titleOf } from "./tasks.js";
import { sentence } from "./words.js";

export class TaskPanel {
  element;
  #title = element("h3", { id: "task-title" });
  #then = element("p", { class: "hint" }, "It will be loaded when it is here.");
  #bar = element("progress", { max: "1", "aria-labelledby": "task-title" });
  #facts = element("p", { class: "task-facts" });
  #message = element("p", { class: "task-message" });
  #answering = element("p", { class: "task-message" });
  #cancel;
  #again;
  #close;
  #task = null;
  #asked = "";

  /** `actions` are `cancel()`, `again(task)` and `dismiss()`. */
  constructor(actions) {
    this.#cancel = textButton("Cancel", () => {
      if (this.#asked === this.#key) return;
      this.#setAsked(this.#key);
      actions.cancel();
    });
    this.#again = textButton("Try again", () => actions.again(this.#task));
    this.#close = iconButton("close", "Close this report", () => actions.dismiss());
    const about = { class: "task", "aria-labelledby": "task-title", tabindex: "-1", hidden: true };
    this.element = element("section", about,
      element("header", {}, this.#title, this.#cancel, this.#again, this.#close), this.#bar,
      this.#facts, this.#message, this.#answering, this.#then);
  }

  get #key() {
    return `${this.#task?.kind} ${this.#task?.id}`;
  }

  /** `answering` names the model that answers now; `isThenLoaded` is of a download. */
  update(task, { answering, isThenLoaded }) {
    const hadFocus = this.element.contains(document.activeElement);
    this.#task = task;
    this.element.hidden = task === null;
    if (!task) return;
    const isGoing = isRunning(task);
    write(this.#title, titleOf(task));
    this.element.classList.toggle("running", isGoing);
    this.element.classList.toggle("bad", task.state === "failed");
    setShare(this.#bar, isGoing ? shareOf(task) : 0);
    write(this.#facts, isGoing ? factsOf(task).join(" · ") : "");
    write(this.#message, isGoing ? "" : sentence(task.message ?? ""));
    const isBack = task.kind === "load" && (task.state === "failed" || task.state === "cancelled");
    write(this.#answering, !isBack ? "" : answering ? `${answering} answers again.`
      : "No model answers now. Load one of the list.");
    this.#bar.hidden = !isGoing;
    this.#then.hidden = !isThenLoaded;
    this.#cancel.hidden = !isGoing || task.kind === "remove";
    this.#setAsked(this.#asked);
    this.#again.hidden = isGoing || task.state === "done" || task.kind === "remove";
    write(this.#again, task.kind === "pull" ? "Resume" : "Try again");
    this.#close.hidden = isGoing;
    const { activeElement } = document;
    if (hadFocus && (activeElement.hidden || !this.element.contains(activeElement))) this.focus();
  }

  focus() {
    [this.#cancel, this.#close, this.element].find((it) => !it.hidden).focus();
  }

  /** After a cancel that the server refused. */
  letCancel() {
    this.#setAsked("");
  }

  /** A button that was disabled would lose the focus. */
  #setAsked(asked) {
    this.#asked = asked;
    const isAsked = asked === this.#key;
    this.#cancel.setAttribute("aria-disabled", String(isAsked));
    write(this.#cancel, isAsked ? "Cancelling…" : "Cancel");
  }
}

/** One line above the message field, which opens the list. */
export class TaskLine {
  #button;
  #text = element("span", {});
  #bar = element("progress", { max: "1", "aria-hidden": "true" });

  constructor(button, open) {
    this.#button = button;
    button.append(icon("again"), this.#text, this.#bar);
    button.addEventListener("click", open);
  }

  update(task) {
    const hadFocus = this.#button === document.activeElement;
    this.#button.hidden = !isRunning(task) || task.kind === "remove";
    if (this.#button.hidden && hadFocus) document.getElementById("message").focus();
    if (this.#button.hidden) return;
    const waits = task.kind === "load" ? " · messages wait" : "";
    write(this.#text, lineOf(task) + waits);
    setShare(this.#bar, shareOf(task));
  }
}

function setShare(bar, share) {
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
}
