// The view for choosing a model: the task that runs, a field for the hub, and the list.
//
// It shows what the manager has, and asks it for changes. Invariant: at most one offer or question
// is open, and closing it gives the focus back to what opened it.

import { openDialog } from "./dialogs.js";
import { element } from "./dom.js";
import { write } from "./meters.js";
import { hubName } from "./model_list.js";
import { ModelRows } from "./model_rows.js";
import { OfferPanel, removal } from "./offer_view.js";
import { TaskPanel } from "./task_view.js";
import { isRunning, phaseName, titleOf } from "./tasks.js";
import { plural, size } from "./words.js";

export class ModelsDialog {
  #manager;
  #dialog;
  #machine = element("p", { class: "hint" });
  #reason = element("p", { class: "reason" });
  #trouble = element("p", { class: "problem", role: "status" });
  #nFound = element("p", { class: "hint", role: "status" });
  #said = element("p", { class: "visually-hidden", role: "status" });
  #filter = element("input", { type: "search", id: "model-filter", autocomplete: "off",
    placeholder: "Name, size or format", autofocus: true });
  #task;
  #rows = new ModelRows((name, model, slot, button) => this.#act(name, model, slot, button));
  #hub;
  #hubSlot = element("div", { class: "slot" });
  #open = null;
  #told = "";

  constructor(manager, { onClose }) {
    this.#manager = manager;
    this.#task = new TaskPanel({
      cancel: () => this.#cancel(),
      again: (task) => this.#again(task),
      dismiss: () => {
        manager.forget();
        this.#filter.focus();
      },
    });
    this.#hub = this.#hubForm();
    const filter = element("div", { class: "field" },
      element("label", { for: "model-filter" }, "Filter"), this.#filter);
    this.#filter.addEventListener("input", () => this.update());
    const children = [this.#task.element, this.#reason,
      element("div", { class: "model-fields" }, filter, this.#hub), this.#hubSlot, this.#machine,
      this.#trouble, this.#nFound, this.#rows.element, this.#said];
    const ended = () => {
      this.#close(false);
      onClose();
    };
    this.#dialog = openDialog("Choose a model", children, { className: "wide", onClose: ended });
    this.#dialog.addEventListener("cancel", (event) => {
      if (!this.#open || event.target !== this.#dialog) return;
      event.preventDefault();
      this.#close();
    });
    this.update();
  }

  close() {
    this.#dialog.close();
  }

  update() {
    const { list, task, trouble } = this.#manager;
    this.#showTask(task);
    write(this.#trouble, trouble);
    if (!list) {
      write(this.#nFound, trouble ? "" : "Asking the server…");
      this.#hub.hidden = true;
      return;
    }
    const { manage, memory_bytes: memory, free_disk_bytes: free } = list;
    this.#hub.hidden = !manage.allowed;
    this.#reason.hidden = manage.allowed;
    write(this.#reason, manage.allowed ? ""
      : `The model can only be looked at here: ${manage.reason ?? "changing it is off"}.`);
    const machine = [];
    if (memory > 0) machine.push(`${size(memory)} of memory`);
    if (free > 0) machine.push(`${size(free)} free on the drive`);
    write(this.#machine, machine.length > 0 ? `This machine: ${machine.join(", ")}` : "");
    const filter = this.#filter.value.trim();
    const n = this.#rows.update(list, { filter, isBusy: isRunning(task) });
    const none = "No model of the list matches. The field for the hub takes any name.";
    write(this.#nFound, filter === "" ? "" : n === 0 ? none : plural(n, "model"));
  }

  #showTask(task) {
    const manager = this.#manager;
    const isShown = task && manager.wasSeen(task);
    const current = manager.list?.current;
    this.#task.update(isShown ? task : null, {
      answering: current && manager.nameOf(current),
      isThenLoaded: manager.loadsAfter,
    });
    if (!isShown) return;
    const told = isRunning(task) ? `${titleOf(task)}. ${phaseName(task)}.`
      : `${titleOf(task)}. ${task.message ?? ""}`;
    if (told !== this.#told) write(this.#said, told);
    this.#told = told;
  }

  #hubForm() {
    const field = element("input", { type: "text", id: "hub-name", autocomplete: "off",
      spellcheck: "false", placeholder: "OWNER/NAME[:QUANT]", "aria-describedby": "hub-problem" });
    const problem = element("p", { class: "problem", id: "hub-problem", role: "status" });
    const look = element("button", { type: "submit", class: "button" }, "Look it up");
    const form = element("form", { class: "field" },
      element("label", { for: "hub-name" }, "Another model of the hub"),
      element("div", { class: "with-button" }, field, look), problem);
    field.addEventListener("input", () => {
      problem.textContent = "";
      field.removeAttribute("aria-invalid");
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const name = hubName(field.value);
      problem.textContent = name ? ""
        : "Write OWNER/NAME, or OWNER/NAME:QUANT for one of several GGUF kinds.";
      field.setAttribute("aria-invalid", String(name === null));
      if (name) this.#offer(name, this.#hubSlot, field);
      else field.focus();
    });
    return form;
  }

  #act(name, model, slot, button) {
    if (name === "pull") this.#offer(model.id, slot, button);
    else if (name === "load") this.#begin(() => this.#manager.load(model.id), slot, button);
    else this.#askToRemove(model, slot, button);
  }

  #offer(id, slot, opener) {
    const panel = new OfferPanel({
      hub: this.#manager.list.hub,
      ask: (signal) => this.#manager.offer(id, signal),
      actions: {
        pull: (offer, thenLoad) => this.#started(
          this.#manager.pull(offer.model, offer.missing_bytes, { thenLoad })),
        load: (offer) => this.#started(this.#manager.load(offer.model)),
        close: () => this.#close(),
        say: (text) => write(this.#said, text),
      },
    });
    this.#show(panel, slot, opener);
  }

  #askToRemove(model, slot, opener) {
    this.#show(removal({
      name: model.name,
      nBytes: model.here_bytes,
      run: () => this.#started(this.#manager.remove(model.id)),
      close: () => this.#close(),
    }), slot, opener);
  }

  #show(panel, slot, opener) {
    this.#close(false);
    this.#open = { panel, opener };
    slot.append(panel.element);
    panel.open();
  }

  async #begin(run, slot, opener) {
    this.#close(false);
    try {
      await this.#started(run());
    } catch (error) {
      const line = element("p", { class: "problem offer", role: "alert" }, error.message);
      this.#show({ element: line, open: () => {}, end: () => line.remove() }, slot, opener);
    }
  }

  /** Waits until the task has begun, and shows it. */
  async #started(begun) {
    await begun;
    this.#close(false);
    this.#dialog.scrollTop = 0;
    this.#task.focus();
  }

  #close(givesFocus = true) {
    const open = this.#open;
    this.#open = null;
    if (!open) return;
    open.panel.end();
    if (givesFocus) open.opener.focus();
  }

  async #cancel() {
    try {
      await this.#manager.cancel();
    } catch (error) {
      this.#task.letCancel();
      if (error.code !== "idle") write(this.#trouble, error.message);
    }
  }

  #again(task) {
    const load = () => this.#manager.load(task.model);
    if (task.kind === "load") this.#begin(load, this.#hubSlot, this.#filter);
    else this.#offer(task.model, this.#hubSlot, this.#filter);
  }
}
