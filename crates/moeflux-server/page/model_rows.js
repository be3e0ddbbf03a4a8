// The rows of the list of models, in groups.
//
// A row is made again only when what it says has changed, so that the focus, and what is open below
// a row, stay where they are.

import { element, textButton } from "./dom.js";
import { actionsOf, groupsOf, isFound, kindOf, needOf, placeOf, planFacts, rates }
  from "./model_list.js";
import { count, sentence } from "./words.js";

export class ModelRows {
  element = element("div", { class: "models" });
  #onAction;
  #rows = new Map();
  #shown = "";

  /** `onAction(name, model, slot, button)`; `slot` is a place below the row. */
  constructor(onAction) {
    this.#onAction = onAction;
  }

  /** Shows what matches the filter, and returns how many models that are. */
  update(list, { filter, isBusy }) {
    const found = list.models.filter((model) => isFound(model, filter));
    const groups = groupsOf(found);
    for (const model of found) this.#row(model).update(model, list, isBusy);
    const idsOf = ({ key, models }) => [key, models.map(({ id }) => id)];
    const shown = JSON.stringify(groups.map(idsOf));
    if (shown === this.#shown) return found.length;
    this.#shown = shown;
    const hadFocus = document.activeElement;
    this.element.replaceChildren(...groups.map(({ key, title, models }) => element("section",
      { "aria-labelledby": `models-${key}` },
      element("h3", { id: `models-${key}` }, title, " ",
        element("span", { class: "n" }, count(models.length))),
      element("ul", {}, ...models.map((model) => this.#row(model).element)))));
    // Elements that are moved lose the focus.
    if (hadFocus?.isConnected) hadFocus.focus();
    return found.length;
  }

  #row(model) {
    if (!this.#rows.has(model.id)) this.#rows.set(model.id, new Row(this.#onAction));
    return this.#rows.get(model.id);
  }
}

class Row {
  element;
  #onAction;
  #body = element("div", { class: "model-row" });
  #slot = element("div", { class: "slot" });
  #told = "";

  constructor(onAction) {
    this.#onAction = onAction;
    this.element = element("li", { class: "model" }, this.#body, this.#slot);
  }

  update(model, list, isBusy) {
    const isCurrent = model.id === list.current;
    const actions = actionsOf(model, list);
    const told = JSON.stringify([model, actions, isCurrent]);
    if (told !== this.#told) this.#make(model, actions, isCurrent);
    this.#told = told;
    for (const button of this.#body.querySelectorAll("button")) button.disabled = isBusy;
  }

  #make(model, actions, isCurrent) {
    const focused = this.#body.contains(document.activeElement)
      ? document.activeElement.dataset.action : null;
    const buttons = actions.map(({ name, label }) => {
      const button = textButton(label, () => this.#onAction(name, model, this.#slot, button), {
        "aria-label": `${label} ${model.name}`,
        "data-action": name,
        class: name === "remove" ? "button quiet" : "button",
      });
      return button;
    });
    const badge = isCurrent ? element("span", { class: "badge" }, "Loaded") : null;
    this.#body.replaceChildren(
      element("div", { class: "model-about" },
        element("p", { class: "model-name" }, element("strong", {}, model.name), badge),
        facts([kindOf(model), placeOf(model)].filter(Boolean))),
      element("div", { class: "model-plan" }, ...planOf(model)),
      element("div", { class: "model-buttons" }, ...buttons));
    this.element.classList.toggle("current", isCurrent);
    if (focused === null) return;
    (buttons.find((it) => it.dataset.action === focused) ?? buttons[0])?.focus();
  }
}

function planOf({ plan, problem }) {
  if (problem) return [element("p", { class: "hint" }, sentence(problem))];
  if (!plan) return [element("p", { class: "hint" }, "What to expect here is not known yet.")];
  if (!plan.fits) return [element("p", { class: "need" }, needOf(plan))];
  const rate = rates(plan.answer_tokens_per_s);
  return [
    rate && element("p", { class: "model-rate" }, element("strong", {}, `${rate} tokens/s`),
      element("small", {}, " in answers")),
    facts(planFacts(plan)),
  ];
}

function facts(texts) {
  return element("ul", { class: "facts hint" }, ...texts.map((text) => element("li", {}, text)));
}
