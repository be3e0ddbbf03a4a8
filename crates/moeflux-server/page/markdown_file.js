// The shown branch of conversations as Markdown for a file, and back.
//
// Each turn begins with a comment that Markdown readers hide, such as `<!-- moeflux: user -->`.
// Invariant: a text that has such a line itself comes back as it was, because its line gets a
// backslash that `fromMarkdown` takes away. Other branches, counts and times are not in the file.

import { newConversation } from "./portable.js";
import { newId } from "./turns.js";

const MARK = new RegExp(
  "^<!-- moeflux: (conversation|system|user|file|assistant|thoughts|call|result)(?: (.*))? -->$",
);
const ESCAPED = /^(\\*)(<!-- moeflux: )/;
const HEADINGS = { user: "You", assistant: "Answer", system: "System prompt" };

/** `list` holds `{conversation, turns}`, with the turns of one branch. */
export function toMarkdown(list) {
  return list.map(({ conversation, turns }) => {
    const parts = [mark("conversation", conversation.title), `# ${conversation.title}`];
    if (conversation.settings.system) push(parts, "system", "", conversation.settings.system);
    turns.forEach((turn) => pushTurn(parts, turn));
    return `${parts.join("\n\n")}\n`;
  }).join("\n");
}

function pushTurn(parts, turn) {
  if (turn.role === "tool") {
    for (const { id, name, content } of turn.results) {
      push(parts, "result", json({ id, name }), content);
    }
    return;
  }
  if (turn.role === "user") {
    push(parts, "user", "", turn.text);
    (turn.files ?? []).forEach((file) => push(parts, "file", json(file.name), file.text));
    return;
  }
  push(parts, "assistant", "", turn.text);
  if (turn.thoughts) push(parts, "thoughts", "", turn.thoughts);
  for (const { id, name, arguments: text } of turn.calls ?? []) {
    push(parts, "call", json({ id, name }), text);
  }
}

function push(parts, kind, about, text) {
  parts.push(mark(kind, about));
  if (kind in HEADINGS) parts.push(`## ${HEADINGS[kind]}`);
  const lines = text.split("\n").map((line) => line.replace(ESCAPED, "\\$1$2"));
  parts.push(lines.join("\n"));
}

function mark(kind, about) {
  // A comment ends at the first "-->", and a line at the first break.
  const safe = about.replaceAll("\n", " ").replaceAll("--", "-\u200b-");
  return `<!-- moeflux: ${kind}${safe ? ` ${safe}` : ""} -->`;
}

function json(value) {
  return JSON.stringify(value);
}

/** Returns a list of `{conversation, turns}`; throws one line if there is none. */
export function fromMarkdown(text, nowMs) {
  const found = [];
  for (const { kind, about, body } of sections(text.replaceAll("\r\n", "\n"))) {
    if (kind === "conversation" || found.length === 0) {
      const title = kind === "conversation" ? about : "";
      found.push({ conversation: newConversation(nowMs, { title }), turns: [] });
    }
    if (kind !== "conversation") readSection(found.at(-1), kind, about, body, nowMs);
  }
  if (found.length === 0) {
    throw new Error("the file has no conversation of moeflux (no line “<!-- moeflux: …”)");
  }
  return found;
}

function sections(text) {
  const list = [];
  for (const line of text.split("\n")) {
    const found = MARK.exec(line);
    if (found) {
      list.push({ kind: found[1], about: (found[2] ?? "").replaceAll("\u200b", ""), lines: [] });
    } else if (list.length > 0) {
      list.at(-1).lines.push(line.replace(/^\\(\\*<!-- moeflux: )/, "$1"));
    }
  }
  return list.map(({ kind, about, lines }) => ({ kind, about, body: bodyOf(kind, lines) }));
}

/** Takes away the heading, and the empty lines that `push` put around the text. */
function bodyOf(kind, lines) {
  const start = kind in HEADINGS ? 3 : 1;
  const end = lines.at(-1) === "" ? lines.length - 1 : lines.length;
  return lines.slice(start, end).join("\n");
}

function readSection({ conversation, turns }, kind, about, body, nowMs) {
  const last = turns.at(-1);
  const add = (turn) => {
    const created = nowMs + turns.length;
    const parent = last?.id ?? null;
    turns.push({ id: newId(), parent, conversation: conversation.id, created, ...turn });
  };
  if (kind === "system") conversation.settings.system = body;
  else if (kind === "user") add({ role: "user", text: body, files: [] });
  else if (kind === "assistant") {
    add({ role: "assistant", text: body, thoughts: "", calls: [], state: "done" });
  } else if (kind === "file" && last?.role === "user") {
    last.files.push({ name: String(parsed(about, about)), text: body });
  } else if (kind === "thoughts" && last?.role === "assistant") {
    last.thoughts = body;
  } else if (kind === "call" && last?.role === "assistant") {
    last.calls.push({ ...named(about), arguments: body });
  } else if (kind === "result") {
    const result = { ...named(about), content: body };
    if (last?.role === "tool") last.results.push(result);
    else add({ role: "tool", results: [result] });
  }
}

function named(about) {
  const { id, name } = parsed(about, null) ?? {};
  return { id: String(id ?? ""), name: String(name ?? "") };
}

function parsed(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}
