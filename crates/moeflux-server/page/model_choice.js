// Connects the name of the model in the bar, the start and the line above the message field with
// the view for choosing a model, and says what became of a task.
//
// Invariant: where the server cannot change its model, the name is a name and nothing else.

import { element, textButton } from "./dom.js";
import { ModelManager } from "./model_manager.js";
import { ModelsDialog } from "./models_dialog.js";
import { announce, notify } from "./notices.js";
import { TaskLine } from "./task_view.js";
import { isRunning, phaseName, titleOf } from "./tasks.js";
import { sentence } from "./words.js";

export class ModelChoice {
  #manager;
  #button;
  #start;
  #line;
  #dialog = null;
  #onChanged;
  #onReady;
  #model = "";
  #said = "";

  /**
   * `button` names the model, `start` is a place for a button on the start, and `line` one for the
   * running task. `onChanged()` is called when another model may answer, and `onReady()` when a
   * person who waited for it can write.
   */
  constructor({ server, button, start, line, onChanged, onReady }) {
    this.#button = button;
    this.#start = textButton("Choose a model", () => this.open(), { hidden: true });
    start.append(this.#start);
    this.#line = new TaskLine(line, () => this.open());
    this.#onChanged = onChanged;
    this.#onReady = onReady;
    this.#manager = new ModelManager({
      server,
      onChange: () => this.#show(),
      onEnd: (task) => this.#ended(task),
    });
    button.addEventListener("click", () => this.open());
    this.#show();
  }

  get isThere() {
    return this.#manager.isThere;
  }

  setModel(name) {
    this.#model = name;
    this.#show();
  }

  /** Asks whether the server can change its model, and what it does now. */
  find() {
    return this.#manager.find();
  }

  open() {
    if (this.#dialog || !this.isThere) return;
    this.#dialog = new ModelsDialog(this.#manager, {
      onClose: () => {
        this.#dialog = null;
        this.#manager.unwatch();
      },
    });
    this.#manager.watch();
  }

  #show() {
    const { isThere, task } = this.#manager;
    const name = this.#model || (isThere ? "No model" : "");
    if (this.#button.dataset.shown !== `${isThere} ${name}`) {
      this.#button.dataset.shown = `${isThere} ${name}`;
      this.#button.hidden = name === "";
      this.#button.disabled = !isThere;
      this.#button.title = isThere ? "Choose a model" : "";
      this.#button.replaceChildren(element("span", {}, name), ...(isThere
        ? [element("span", { class: "visually-hidden" }, ", choose a model")] : []));
    }
    this.#start.hidden = !isThere;
    this.#line.update(task);
    this.#dialog?.update();
    this.#say(task);
  }

  /** Reads aloud that a load goes on; the view reads what it shows itself. */
  #say(task) {
    if (!isRunning(task) || task.kind !== "load") return;
    const line = `${titleOf(task)}. ${phaseName(task)}.`;
    if (line !== this.#said && !this.#dialog) announce(line);
    this.#said = line;
  }

  #ended(task) {
    this.#said = "";
    const isLoad = task.kind === "load";
    if (isLoad) this.#onChanged();
    if (task.state === "missed") return;
    const isOwn = this.#manager.isOwn(task);
    if (isLoad && task.state === "done" && isOwn && this.#dialog) {
      this.#dialog.close();
      this.#dialog = null;
      this.#onReady();
    }
    if (this.#dialog || task.isLoadedNext) return;
    const text = [`${titleOf(task)}.`, task.state === "failed" ? sentence(task.message ?? "") : ""];
    const show = { label: "Show", run: () => this.open() };
    notify(text.filter(Boolean).join(" "), { action: task.state === "failed" ? show : null });
  }
}
