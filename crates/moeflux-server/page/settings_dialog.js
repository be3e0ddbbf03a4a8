// The settings of a conversation as a form.
//
// Empty fields mean what the model recommends, which is shown in them. Each change is kept at once;
// a mistake is said below its field, and stays until it is mended.

import { openDialog } from "./dialogs.js";
import { element, textButton } from "./dom.js";
import { keepPreference } from "./kept.js";
import { EMPTY_SETTINGS, NUMBERS, readSettings } from "./settings.js";

const TOOL_EXAMPLE = `[{
  "name": "get_weather",
  "description": "The weather in a city",
  "parameters": {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"]
  }
}]`;
const SCHEMA_EXAMPLE = `{
  "type": "object",
  "properties": {"colour": {"enum": ["red", "green"]}},
  "required": ["colour"]
}`;

/** Opens the form. `onChange(settings)` gets all settings after each change. */
export function showSettings({ settings, props, onChange }) {
  const form = new SettingsForm({ ...EMPTY_SETTINGS, ...settings }, props, { onChange });
  openDialog("Settings of this conversation", [form.element], { className: "sheet" });
  form.showProblems();
}

/** The settings that new conversations begin with. */
function keepForNew(settings) {
  keepPreference("settings", settings);
}

export class SettingsForm {
  #settings;
  #onChange;
  #prefix;
  #problems = new Map();
  #fields = new Map();

  /**
   * `prefix` makes the ids of fields unique. A form that is not `isWhole` is beside another one: it
   * has no buttons, and what is long is folded.
   */
  constructor(settings, props, { onChange, prefix = "setting", isWhole = true }) {
    this.#settings = settings;
    this.#onChange = onChange;
    this.#prefix = prefix;
    const recommended = props?.default_generation_settings?.params ?? {};
    const caps = props?.chat_template_caps ?? {};
    const parts = [this.#area("system", "System prompt", "What the model should know or do",
      isWhole ? 4 : 2)];
    if (caps.supports_thinking !== false) parts.push(this.#thinking());
    parts.push(this.#numbers(recommended), this.#probabilities());
    const long = caps.supports_tools === false ? [this.#schema()] : [this.#tools(), this.#schema()];
    if (isWhole) parts.push(...long, this.#foot());
    else parts.push(element("details", {}, element("summary", {}, "More settings"), ...long));
    this.element = element("form", { class: "settings" }, ...parts);
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  showProblems() {
    const { problems } = readSettings(this.#settings);
    for (const [key, line] of this.#problems) {
      line.textContent = problems[key] ?? "";
      this.#fields.get(key).setAttribute("aria-invalid", String(key in problems));
    }
  }

  /** Writes into a field what nobody typed. */
  fill(key, value) {
    this.#fields.get(key).value = value;
    this.#set(key, value);
  }

  focusProblem() {
    const field = [...this.#fields.values()].find((it) => it.ariaInvalid === "true");
    for (let part = field; part; part = part.parentElement) {
      if (part.localName === "details") part.open = true;
    }
    field?.focus();
  }

  #set(key, value) {
    this.#settings = { ...this.#settings, [key]: value };
    this.showProblems();
    this.#onChange(this.#settings);
  }

  /** A label, its field, and the line for a mistake. */
  #labelled(key, label, field, className = "field") {
    const id = `${this.#prefix}-${key}`;
    field.id = id;
    field.setAttribute("aria-describedby", `${id}-problem`);
    const line = element("p", { class: "problem", id: `${id}-problem`, "aria-live": "polite" });
    this.#problems.set(key, line);
    this.#fields.set(key, field);
    field.value = this.#settings[key] ?? "";
    field.addEventListener("input", () => this.#set(key, field.value));
    return element("div", { class: className }, element("label", { for: id }, label), field, line);
  }

  #area(key, label, placeholder, rows, className = null) {
    const about = { rows: String(rows), placeholder, spellcheck: "false", class: className };
    return this.#labelled(key, label, element("textarea", about));
  }

  #select(key, label, options) {
    const made = options.map(([value, text]) => element("option", { value }, text));
    return this.#labelled(key, label, element("select", {}, ...made));
  }

  #thinking() {
    const options = [["", "As the model's template does"], ["on", "On"], ["off", "Off"]];
    return this.#select("thinking", "Thoughts before an answer", options);
  }

  #probabilities() {
    const options = [["", "Off"], ["on", "On"]];
    return this.#select("probabilities", "Probabilities of tokens", options);
  }

  #numbers(recommended) {
    const fields = NUMBERS.map(({ key, label, props, whole }) => {
      const value = props === null ? undefined : recommended[props];
      const otherwise = { max_tokens: "no limit", seed: "drawn" }[key] ?? "the model's";
      const about = {
        type: "text",
        inputmode: whole ? "numeric" : "decimal",
        placeholder: value === undefined ? otherwise : String(value),
        autocomplete: "off",
      };
      return this.#labelled(key, label, element("input", about));
    });
    return element("fieldset", {}, element("legend", {}, "Sampling"),
      element("div", { class: "grid" }, ...fields));
  }

  #tools() {
    const choices = [["auto", "The model decides"], ["required", "Yes, first of all"],
      ["none", "No"]];
    return element("fieldset", {}, element("legend", {}, "Tools"),
      element("p", { class: "hint" }, "A list as in a request. moeflux runs no tools: you give the "
        + "result of each call."),
      this.#area("tools", "Tools, as JSON", TOOL_EXAMPLE, 8, "mono"),
      this.#select("toolChoice", "Whether the model calls one", choices));
  }

  #schema() {
    return element("fieldset", {}, element("legend", {}, "Form of an answer"),
      this.#area("schema", "JSON schema", SCHEMA_EXAMPLE, 6, "mono"));
  }

  #foot() {
    const status = element("span", { class: "hint", role: "status" });
    const keep = textButton("Use for new conversations", () => {
      keepForNew(this.#settings);
      status.textContent = "New conversations begin with these.";
    });
    const reset = textButton("Reset", () => {
      for (const [key, field] of this.#fields) field.value = EMPTY_SETTINGS[key];
      this.#settings = { ...EMPTY_SETTINGS };
      this.showProblems();
      this.#onChange(this.#settings);
      status.textContent = "All as the model recommends.";
    });
    return element("div", { class: "buttons" }, keep, reset, status);
  }
}
