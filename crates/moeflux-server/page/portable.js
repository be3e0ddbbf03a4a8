// Conversations as JSON for a file, and back.
//
// Invariant: what `toJson` writes, `fromJson` reads to the same turns, branches and settings, under
// new ids, so that a file can be read twice and never replaces what is there. Foreign files are
// read where they can be: a list of messages as in a request. Keys of the server are never in it,
// nor are probabilities, which would make a file twenty times as large: the seed gives them again.

import { EMPTY_SETTINGS } from "./settings.js";
import { newId } from "./turns.js";

const FORMAT = "moeflux conversations";
const ROLES = new Set(["user", "assistant", "tool"]);
const TURN_FIELDS = [
  "role", "created", "text", "files", "thoughts", "calls", "results", "state", "seed", "asked",
  "model", "usage", "seconds", "edited",
];

/** `list` holds `{conversation, turns}`. */
export function toJson(list) {
  const conversations = list.map(({ conversation, turns }) => ({
    title: conversation.title,
    created: conversation.created,
    updated: conversation.updated,
    settings: conversation.settings,
    chosen: conversation.chosen,
    firstSent: conversation.firstSent ?? null,
    turns: turns.map((turn) => ({ id: turn.id, parent: turn.parent, ...pick(turn, TURN_FIELDS) })),
  }));
  return `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1)}\n`;
}

/** Returns a list of `{conversation, turns}`; throws one line if the file is something else. */
export function fromJson(text, nowMs) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("the file is not valid JSON");
  }
  const messages = Array.isArray(value) ? value : value?.messages;
  if (Array.isArray(messages)) return [fromMessages(messages, nowMs)];
  if (value?.format !== FORMAT || !Array.isArray(value.conversations)) {
    throw new Error("the file has no conversations of moeflux and no list of messages");
  }
  return value.conversations.map((item) => readConversation(item, nowMs));
}

function readConversation(item, nowMs) {
  const ids = new Map((item.turns ?? []).map((turn) => [turn.id, newId()]));
  const conversation = newConversation(nowMs, {
    title: typeof item.title === "string" ? item.title : "",
    created: number(item.created, nowMs),
    updated: number(item.updated, nowMs),
    settings: readSettingTexts(item.settings ?? {}),
    firstSent: ids.get(item.firstSent) ?? null,
  });
  for (const [parent, child] of Object.entries(item.chosen ?? {})) {
    if (ids.has(child)) conversation.chosen[ids.get(parent) ?? parent] = ids.get(child);
  }
  const turns = (item.turns ?? []).filter((turn) => ROLES.has(turn.role)).map((turn) => ({
    ...readTurn(turn, nowMs),
    id: ids.get(turn.id),
    parent: ids.get(turn.parent) ?? null,
    conversation: conversation.id,
  }));
  return { conversation, turns };
}

function readSettingTexts(settings) {
  const known = pick(settings, Object.keys(EMPTY_SETTINGS));
  const texts = Object.entries(known).map(([key, value]) => [key, String(value ?? "")]);
  return { ...EMPTY_SETTINGS, ...Object.fromEntries(texts) };
}

/** A turn whose fields have the types that the page counts on. */
function readTurn(turn, nowMs) {
  const list = (value, keys) =>
    (Array.isArray(value) ? value : []).map((item) =>
      Object.fromEntries(keys.map((key) => [key, String(item?.[key] ?? "")])));
  const read = { ...pick(turn, TURN_FIELDS), created: number(turn.created, nowMs) };
  if (turn.role === "tool") {
    return { ...read, results: list(turn.results, ["id", "name", "content"]) };
  }
  read.text = String(turn.text ?? "");
  if (turn.role === "user") return { ...read, files: list(turn.files, ["name", "text"]) };
  read.thoughts = String(turn.thoughts ?? "");
  read.calls = list(turn.calls, ["id", "name", "arguments"]);
  for (const key of ["usage", "seconds"]) if (key in read) read[key] = numbers(read[key]);
  if (read.asked?.from) {
    const { text, token } = read.asked.from;
    read.asked = { ...read.asked, from: { text: String(text ?? ""), token: String(token ?? "") } };
  }
  read.state = turn.state === "running" ? "cut" : (turn.state ?? "done");
  return read;
}

/** A conversation from messages as in a request of Chat Completions. */
function fromMessages(messages, nowMs) {
  const conversation = newConversation(nowMs, {});
  const turns = [];
  const add = (turn) => {
    const parent = turns.at(-1)?.id ?? null;
    const created = nowMs + turns.length;
    turns.push({ id: newId(), parent, conversation: conversation.id, created, ...turn });
  };
  for (const message of messages) {
    const text = textOf(message.content);
    if (message.role === "system" || message.role === "developer") {
      conversation.settings.system = text;
    } else if (message.role === "user") {
      add({ role: "user", text, files: [] });
    } else if (message.role === "assistant") {
      const calls = (message.tool_calls ?? []).map((call) => ({
        id: String(call.id ?? ""),
        name: String(call.function?.name ?? ""),
        arguments: String(call.function?.arguments ?? ""),
      }));
      const thoughts = textOf(message.reasoning_content ?? "");
      add({ role: "assistant", text, thoughts, calls, state: "done" });
    } else if (message.role === "tool") {
      const result = { id: String(message.tool_call_id ?? ""), name: "", content: text };
      if (turns.at(-1)?.role === "tool") turns.at(-1).results.push(result);
      else add({ role: "tool", results: [result] });
    }
  }
  if (turns.length === 0) throw new Error("the file has no messages");
  return { conversation, turns };
}

export function newConversation(nowMs, fields) {
  return {
    id: newId(),
    title: "",
    created: nowMs,
    updated: nowMs,
    settings: { ...EMPTY_SETTINGS },
    chosen: {},
    firstSent: null,
    ...fields,
  };
}

function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => part?.text ?? "").join("");
}

/** The numbers of an object, or null. */
function numbers(object) {
  if (!object || typeof object !== "object") return null;
  const found = Object.entries(object).filter(([, value]) => Number.isFinite(value));
  return Object.fromEntries(found);
}

function number(value, otherwise) {
  return Number.isFinite(value) ? value : otherwise;
}

function pick(object, keys) {
  return Object.fromEntries(keys.filter((key) => key in object).map((key) => [key, object[key]]));
}
