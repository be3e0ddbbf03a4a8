// Reads what a person typed into the settings of a conversation.
//
// Settings are texts as they were typed (an empty one means "as the model recommends"), so that a
// half-written list of tools is not lost. `readSettings` turns them into fields of a request, or
// says in one line what is wrong with which field. The server checks values again.

import { WITH_PROBABILITIES } from "./continuation.js";

/** The numbers, by the name of their field in a request. `props` is their name in /props. */
export const NUMBERS = [
  number("temperature", "Temperature", "temperature", [0, 100]),
  number("top_k", "Top k", "top_k", [-1, 1_000_000], true),
  number("top_p", "Top p", "top_p", [0, 1]),
  number("min_p", "Min p", "min_p", [0, 1]),
  number("presence_penalty", "Presence penalty", "presence_penalty", [-2, 2]),
  number("frequency_penalty", "Frequency penalty", "frequency_penalty", [-2, 2]),
  number("repetition_penalty", "Repeat penalty", "repeat_penalty", [0, 10]),
  number("max_tokens", "Most tokens", null, [1, 2 ** 31], true),
  number("seed", "Seed", null, [0, 2 ** 53 - 1], true),
];

function number(key, label, props, [min, max], whole = false) {
  return { key, label, props, min, max, whole };
}

export const EMPTY_SETTINGS = Object.freeze({
  system: "",
  thinking: "",
  probabilities: "",
  tools: "",
  toolChoice: "auto",
  schema: "",
  ...Object.fromEntries(NUMBERS.map(({ key }) => [key, ""])),
});

/** Returns `{fields, problems}`: fields of a request, and a line for each key that is wrong. */
export function readSettings(settings) {
  const fields = {};
  const problems = {};
  const attempt = (key, read) => {
    const text = String(settings[key] ?? "").trim();
    if (text === "") return;
    try {
      Object.assign(fields, read(text));
    } catch (error) {
      problems[key] = error.message;
    }
  };
  for (const number of NUMBERS) {
    attempt(number.key, (text) => ({ [number.key]: readNumber(text, number) }));
  }
  attempt("thinking", (text) => ({ chat_template_kwargs: { enable_thinking: text === "on" } }));
  attempt("probabilities", (text) => (text === "on" ? WITH_PROBABILITIES : {}));
  attempt("tools", (text) => ({ tools: readTools(text) }));
  attempt("schema", (text) => ({ response_format: readSchema(text) }));
  if (fields.tools && settings.toolChoice && settings.toolChoice !== "auto") {
    fields.tool_choice = settings.toolChoice;
  }
  return { fields, problems };
}

/** The settings that are not empty, in a few words. */
export function settingsLine(settings) {
  const given = (key) => String(settings[key] ?? "").trim();
  const numbers = NUMBERS.filter(({ key }) => given(key) !== "")
    .map(({ key, label }) => `${label} ${given(key)}`);
  const thinking = given("thinking") && `Thoughts ${given("thinking")}`;
  const others = [["system", "System prompt"], ["tools", "Tools"], ["schema", "JSON schema"]]
    .map(([key, label]) => given(key) && label);
  return [...numbers, thinking, ...others].filter((part) => part !== "").join(" · ");
}

function readNumber(text, { min, max, whole }) {
  const value = Number(text.replace(",", "."));
  if (!Number.isFinite(value)) throw new Error(`“${text}” is not a number`);
  if (whole && !Number.isInteger(value)) throw new Error("must be a whole number");
  if (value < min || value > max) throw new Error(`must be from ${min} to ${max}`);
  return value;
}

/** Accepts a list of tools or one tool, with or without the wrapper {"type": "function"}. */
function readTools(text) {
  const value = readJson(text);
  const list = Array.isArray(value) ? value : [value];
  if (list.length === 0) throw new Error("the list is empty");
  return list.map((item, index) => {
    const tool = item?.type === "function" && item.function ? item.function : item;
    if (typeof tool?.name !== "string" || tool.name === "") {
      throw new Error(`tool ${index + 1} has no "name"`);
    }
    const { name, description, parameters, strict } = tool;
    return { type: "function", function: { name, description, parameters, strict } };
  });
}

function readSchema(text) {
  const value = readJson(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("a schema is an object, such as {\"type\": \"object\"}");
  }
  return { type: "json_schema", json_schema: { name: "answer", schema: value } };
}

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`not valid JSON: ${error.message}`);
  }
}
