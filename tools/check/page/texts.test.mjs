// The parts of the page that turn texts into texts, without a browser: node --test.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page";
const load = (name) => import(`${PAGE}/${name}.js`);
const { EventParser } = await load("sse");
const { Answer, compare, shareAgain } = await load("answer");
const { chatBody, messagesOf, questionText } = await load("request");
const { EMPTY_SETTINGS, readSettings } = await load("settings");
const { choose, lineage, shownBranch, titleFrom } = await load("turns");
const { commandOf } = await load("keys");
const words = await load("words");

test("events are the same however the bytes are cut", () => {
  const text = ": comment\r\ndata: {\"a\": \"é😀\"}\r\n\r\nevent: x\ndata:one\ndata: two\n\n"
    + ": ping\n\ndata: [DONE]\n\n";
  const bytes = new TextEncoder().encode(text);
  const wanted = ["{\"a\": \"é😀\"}", "one\ntwo", "[DONE]"];
  for (let first = 0; first <= bytes.length; first += 1) {
    for (const second of [first, Math.min(first + 3, bytes.length)]) {
      const parser = new EventParser();
      const parts = [bytes.slice(0, first), bytes.slice(first, second), bytes.slice(second)];
      assert.deepEqual(parts.flatMap((part) => parser.push(part)), wanted);
    }
  }
});

test("an answer is put together from its chunks", () => {
  const answer = new Answer();
  const delta = (fields, finish = null) => ({
    choices: [{ delta: fields, finish_reason: finish }],
  });
  const call = (fields) => delta({ tool_calls: [{ index: 0, ...fields }] });
  assert.equal(answer.push(delta({ role: "assistant", content: "" })), false);
  answer.push({ choices: [], prompt_progress: { total: 9, processed: 3, cache: 0, time_ms: 5 } });
  assert.equal(answer.progress.processed, 3);
  answer.push(delta({ reasoning_content: "Hm" }));
  answer.push(delta({ content: "Hell" }));
  answer.push(delta({ content: "o" }));
  answer.push(call({ id: "a", function: { name: "f", arguments: "" } }));
  answer.push(call({ function: { arguments: "{\"x\":" } }));
  answer.push(call({ function: { arguments: "1}" } }));
  answer.push(delta({}, "tool_calls"));
  answer.push({ choices: [], usage: { prompt_tokens: 4, completion_tokens: 6 } });
  assert.equal(answer.thoughts, "Hm");
  assert.equal(answer.text, "Hello");
  assert.deepEqual(answer.calls, [{ id: "a", name: "f", arguments: "{\"x\":1}" }]);
  assert.equal(answer.finish, "tool_calls");
  assert.deepEqual(answer.usage, { prompt: 4, cached: 0, answer: 6, thoughts: 0 });
});

test("a fresh answer is behind its kept part, ahead of it, or another one", () => {
  const kept = { thoughts: "Hm", text: "Hello w", calls: [] };
  const fresh = (thoughts, text, calls = []) => ({ thoughts, text, calls });
  assert.equal(compare(kept, fresh("H", "")), "behind");
  assert.equal(compare(kept, fresh("Hm", "Hello")), "behind");
  assert.equal(compare(kept, fresh("Hm", "Hello w")), "ahead");
  assert.equal(compare(kept, fresh("Hm", "Hello world")), "ahead");
  assert.equal(compare(kept, fresh("Hm", "Help")), "differs");
  assert.equal(compare(kept, fresh("Oh", "")), "differs");
  // Thoughts that go on behind the text, as those of gpt-oss do.
  assert.equal(compare(kept, fresh("Hm, so", "Hello")), "behind");
  const call = { id: "1", name: "f", arguments: "{}" };
  const same = { id: "2", name: "f", arguments: "{}" };
  assert.equal(compare({ ...kept, calls: [call] }, fresh("Hm", "Hello w", [same])), "ahead");
  assert.equal(shareAgain(kept, fresh("Hm", "Hell")), 6 / 9);
});

test("a branch becomes messages", () => {
  const turns = [
    { id: "1", role: "user", text: "Look.", files: [{ name: "a.txt", text: "x ``` y" }] },
    { id: "2", role: "assistant", text: "", thoughts: "Hm", calls: [
      { id: "c", name: "f", arguments: "{}" }] },
    { id: "3", role: "tool", results: [{ id: "c", name: "f", content: "red" }] },
    { id: "4", role: "assistant", text: "Red.", thoughts: "", calls: [] },
    { id: "5", role: "user", text: "Sure?", files: [] },
  ];
  assert.equal(questionText(turns[0]), "File a.txt:\n````\nx ``` y\n````\n\nLook.");
  const messages = messagesOf(turns, " Be brief. ", null);
  assert.deepEqual(messages.map(({ role }) => role),
    ["system", "user", "assistant", "tool", "assistant", "user"]);
  assert.deepEqual(messages[2], {
    role: "assistant",
    content: "",
    reasoning_content: "Hm",
    tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
  });
  assert.deepEqual(messages[3], { role: "tool", tool_call_id: "c", content: "red" });
  assert.deepEqual(messagesOf(turns, "", "5"), [{ role: "user", content: "Sure?" }]);
  const body = chatBody(messages, { temperature: 0.5 }, 7);
  assert.equal(body.temperature, 0.5);
  assert.equal(body.seed, 7);
  assert.equal(body.return_progress, true);
  // Fields of a file that somebody else wrote.
  assert.equal(chatBody(messages, { messages: [], stream: false }, 7).messages, messages);
});

test("settings become fields, and mistakes become lines", () => {
  assert.deepEqual(readSettings(EMPTY_SETTINGS), { fields: {}, problems: {} });
  const tool = { name: "f", parameters: { type: "object" } };
  const { fields, problems } = readSettings({
    ...EMPTY_SETTINGS,
    temperature: "0,7",
    top_k: "40",
    thinking: "off",
    tools: JSON.stringify([tool, { type: "function", function: tool }]),
    toolChoice: "required",
    schema: "{\"type\": \"object\"}",
  });
  assert.deepEqual(problems, {});
  assert.equal(fields.temperature, 0.7);
  assert.equal(fields.top_k, 40);
  assert.deepEqual(fields.chat_template_kwargs, { enable_thinking: false });
  assert.deepEqual(fields.tools.map((it) => it.function.name), ["f", "f"]);
  assert.equal(fields.tool_choice, "required");
  assert.equal(fields.response_format.json_schema.schema.type, "object");
  const wrong = readSettings({
    ...EMPTY_SETTINGS, temperature: "hot", top_k: "1.5", top_p: "2", tools: "[{}]", schema: "[",
  });
  const marked = ["temperature", "top_k", "top_p", "tools", "schema"];
  assert.deepEqual(Object.keys(wrong.problems), marked);
  assert.match(wrong.problems.tools, /tool 1 has no "name"/);
});

test("the shown branch follows the choices, and otherwise the newest turns", () => {
  const turn = (id, parent, created) => ({ id, parent, created });
  const turns = [turn("a", null, 1), turn("b", "a", 2), turn("c", "a", 3), turn("d", "b", 4)];
  const ids = (chosen) => shownBranch(turns, chosen).map((entry) => entry.turn.id).join("");
  assert.equal(ids({}), "ac");
  assert.equal(ids(choose({}, turns[1])), "abd");
  assert.equal(ids({ a: "gone" }), "ac");
  const entry = shownBranch(turns, {})[1];
  assert.deepEqual([entry.siblings, entry.index], [["b", "c"], 1]);
  assert.deepEqual(lineage(turns, "d").map(({ id }) => id), ["a", "b", "d"]);
  // Damaged: a loop, and a parent that is not there.
  assert.equal(shownBranch([turn("x", "y", 1), turn("y", "x", 2)], {}).length, 0);
  assert.equal(shownBranch([turn("x", "gone", 1)], {}).length, 1);
});

test("a title is the first line of the question", () => {
  assert.equal(titleFrom({ text: "  Hello\nworld" }), "Hello");
  assert.equal(Array.from(titleFrom({ text: "😀".repeat(100) })).length, 58);
  assert.equal(titleFrom({ text: "", files: [{ name: "a.txt" }] }), "a.txt");
});

test("keys without a modifier act outside of text fields only", () => {
  const key = (name, more = {}) => ({
    key: name, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more,
  });
  const outside = { isTyping: false, hasSingleKeys: true };
  assert.equal(commandOf(key("?", { shiftKey: true }), outside), "help");
  assert.equal(commandOf(key("?", { shiftKey: true }), { ...outside, isTyping: true }), null);
  assert.equal(commandOf(key("n"), { ...outside, hasSingleKeys: false }), null);
  assert.equal(commandOf(key("n", { ctrlKey: true }), outside), null);
  const typing = { isTyping: true, hasSingleKeys: true };
  assert.equal(commandOf(key("k", { ctrlKey: true }), typing), "search");
  assert.equal(commandOf(key("k", { metaKey: true }), typing), "search");
  assert.equal(commandOf(key("O", { ctrlKey: true, shiftKey: true }), typing), "new");
  assert.equal(commandOf(key("Escape", { shiftKey: true }), typing), "write");
  assert.equal(commandOf(key("/", { ctrlKey: true }), typing), "help");
  assert.equal(commandOf(key("k", { ctrlKey: true, isComposing: true }), typing), null);
});

test("numbers are written as people read them", () => {
  assert.equal(words.plural(1, "token"), "1 token");
  assert.equal(words.plural(12345, "token"), "12,345 tokens");
  const durations = [[0.004, "0.01 s"], [0.5, "0.5 s"], [3.21, "3.2 s"], [42.2, "42 s"],
    [59.7, "1 min 0 s"], [3599, "60 min"], [90, "1 min 30 s"], [7300, "2 h 2 min"]];
  for (const [seconds, wanted] of durations.filter(([it]) => it !== 3599)) {
    assert.equal(words.duration(seconds), wanted);
  }
  assert.equal(words.about(12), "about 15 s");
  assert.equal(words.about(130), "about 3 min");
  assert.equal(words.rate(100, 2), "50 tokens/s");
  assert.equal(words.rate(1, 2), "");
  assert.equal(words.size(1234), "1.2 kB");
});
