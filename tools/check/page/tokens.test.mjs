// Tokens with probabilities, and the requests by which an answer goes on from one.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page/";
const { Answer, compare } = await import(`${PAGE}answer.js`);
const tokens = await import(`${PAGE}token_list.js`);
const continuation = await import(`${PAGE}continuation.js`);
const { EMPTY_SETTINGS, readSettings, settingsLine } = await import(`${PAGE}settings.js`);
const { fromJson, newConversation, toJson } = await import(`${PAGE}portable.js`);

const { N_TOKENS_MAX, N_WITH_TOP_MAX, TokenList, choicesAt, obstacle, tokensUpTo } = tokens;

function entry(token, logprob = -0.1, top = []) {
  const bytes = typeof token === "string" ? [...Buffer.from(token)] : token;
  const text = Buffer.from(bytes).toString("utf8");
  const others = top.map(([name, value]) => entry(name, value));
  return { token: text, bytes, logprob, top_logprobs: others };
}

function listOf(...chunks) {
  const list = new TokenList();
  for (const [entries, text] of chunks) list.push(entries, text);
  return list.tokens;
}

const textsOf = (list) => list.map(({ text }) => text);

test("the texts of tokens are the text of the answer", () => {
  const list = listOf([[entry("Ap")], "Ap"], [[entry("ple"), entry(" pie")], "ple pie"],
    [[entry("<|im_end|>")], ""]);
  assert.deepEqual(textsOf(list), ["Ap", "ple", " pie", ""]);
  assert.equal(list[3].own, "<|im_end|>");
  assert.equal(list[0].own, undefined);
  const held = listOf([[entry(" foo"), entry("<|im_end|>")], " foo"]);
  assert.deepEqual(textsOf(held), [" foo", ""]);
  const late = new Answer();
  late.push({ choices: [{ delta: { content: "Early " } }] });
  late.push({ choices: [{ delta: { content: "late" }, logprobs: { content: [entry("late")] } }] });
  assert.deepEqual(late.scored.tokens.map(({ text, logprob }) => [text, logprob]),
    [["Early ", null], ["late", -0.1]]);
  const without = new Answer();
  without.push({ choices: [{ delta: { content: "a" }, logprobs: null }] });
  assert.equal(without.scored, null);
});

test("a character in several tokens belongs to the last of them", () => {
  const [first, second] = [[0xf0, 0x9f], [0x98, 0x80]];
  const together = listOf([[entry(first), entry(second)], "😀"], [[entry("!")], "!"]);
  assert.deepEqual(textsOf(together), ["", "😀", "!"]);
  assert.deepEqual(together[0].bytes, first);
  assert.equal(obstacle(together, 0, { text: "x", logprob: -1 }), null);
  assert.match(obstacle(together, 1, { text: "x", logprob: -1 }), /before it is not complete/);
  assert.equal(obstacle(together, 2, { text: "x", logprob: -1 }), null);
  const behindSpace = listOf([[entry([0x20, ...first])], " "], [[entry(second)], "😀"]);
  assert.deepEqual(textsOf(behindSpace), [" ", "😀"]);
  assert.notEqual(obstacle(behindSpace, 1, { text: "x", logprob: -1 }), null);
  assert.equal(obstacle(behindSpace, 2, { text: "x", logprob: -1 }), null);
  // Completions tells no bytes.
  const told = (text) => ({ token: text, logprob: -1, top_logprobs: [] });
  const blind = listOf([[told(" \uFFFD")], " "], [[told("\uFFFD")], "😀"]);
  assert.notEqual(obstacle(blind, 1, { text: "x", logprob: -1 }), null);
  assert.equal(obstacle(blind, 2, { text: "x", logprob: -1 }), null);
  // Bytes that are no character, at the end.
  assert.deepEqual(textsOf(listOf([[entry([0xab]), entry("<|im_end|>")], "\uFFFD"])),
    ["\uFFFD", ""]);
  // The replacement character itself is whole.
  assert.equal(listOf([[entry("\uFFFD")], "\uFFFD"])[0].bytes, undefined);
});

test("an answer keeps a bounded number of tokens and alternatives", () => {
  const list = new TokenList();
  for (let index = 0; index < N_TOKENS_MAX + 10; index += 1) {
    list.push([entry("a", -0.1, [["a", -0.1], ["b", -3]])], "a");
  }
  const { tokens: found } = list;
  assert.equal(found.length, N_TOKENS_MAX + 1);
  assert.equal(found[N_WITH_TOP_MAX - 1].top.length, 2);
  assert.equal(found[N_WITH_TOP_MAX].top.length, 0);
  assert.deepEqual(found.at(-1), { text: "a".repeat(10), logprob: null, top: [] });
  assert.equal(found.map(({ text }) => text).join("").length, N_TOKENS_MAX + 10);
});

test("choices are the most likely tokens and the one that was chosen", () => {
  const [token] = listOf([[entry("c", -4, [["a", -0.5], ["b", -2]])], "c"]);
  assert.deepEqual(choicesAt(token).map(({ text, isChosen }) => [text, Boolean(isChosen)]),
    [["a", false], ["b", false], ["c", true]]);
  const [likely] = listOf([[entry("b", -2, [["b", -2], ["a", -0.5]])], "b"]);
  assert.deepEqual(choicesAt(likely).map(({ text, isChosen }) => [text, Boolean(isChosen)]),
    [["a", false], ["b", true]]);
  for (const text of ["<|im_end|>", "</s>", "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>"]) {
    assert.match(obstacle([token], 0, { text, logprob: -1 }), /would end/, text);
  }
  for (const text of ["<think>", "<tool_call>", "<|", "a"]) {
    assert.equal(obstacle([token], 0, { text, logprob: -1 }), null, text);
  }
});

test("tokens are kept up to a text, and the rest is one without a number", () => {
  const list = listOf([[entry("one")], "one"], [[entry(" two")], " two"], [[entry(" x")], " x"]);
  assert.deepEqual(tokensUpTo(list, "one two"), list.slice(0, 2));
  assert.deepEqual(tokensUpTo(undefined, "one"), [{ text: "one", logprob: null, top: [] }]);
  assert.deepEqual(textsOf(tokensUpTo(list, "one three")), ["one", " three"]);
  const base = tokensUpTo(undefined, "one");
  const answer = new Answer({ text: "one", tokens: base });
  answer.push({ choices: [{ delta: { content: "!" } }] });
  assert.equal(base[0].text, "one");
  assert.deepEqual(textsOf(answer.scored.tokens), ["one!"]);
});

test("probabilities are written and classed", () => {
  const { classOf, logprobText, probabilityText, spokenName, visibleName } = tokens;
  assert.deepEqual([0, -0.00001, -0.0273, -3.2, -12, null].map(probabilityText),
    ["100 %", "over 99.99 %", "97.3 %", "4.08 %", "under 0.01 %", "not known"]);
  assert.deepEqual([0, -0.0273, -12.34, null].map(logprobText), ["0", "−0.027", "−12.3", "–"]);
  assert.deepEqual([-0.05, -0.5, -1.5, -5, null].map(classOf),
    ["sure", "likely", "open", "rare", "unknown"]);
  assert.equal(visibleName({ text: " a\n" }), "␣a↵");
  assert.equal(visibleName({ text: "\uFFFD", bytes: [0xf0, 0x9] }), "bytes F0 09");
  assert.equal(spokenName({ text: " a" }), "a");
  assert.equal(spokenName({ text: "\n" }), "line break");
  assert.equal(spokenName({ text: "  " }), "space");
});

test("the prompt of a continuation is a conversation and the chosen token", () => {
  const fields = { tools: [1], temperature: 0, response_format: {}, logprobs: true,
    chat_template_kwargs: { enable_thinking: true } };
  const messages = [{ role: "user", content: "Hi" }];
  const about = { thoughts: "Hm.", from: { text: "One", token: " two" } };
  assert.deepEqual(continuation.conversationBody(messages, about, fields), {
    tools: [1],
    chat_template_kwargs: { enable_thinking: true },
    messages: [messages[0], { role: "assistant", content: "One", reasoning_content: "Hm." }],
    continue_final_message: true,
  });
  assert.deepEqual(continuation.tokenBody(about), { content: " two", add_special: false });
  assert.equal(continuation.joinedBody(messages, about, fields).messages[1].content, "One two");
  const first = { thoughts: "", from: { text: "", token: "Two" } };
  assert.deepEqual(continuation.conversationBody(messages, first, {}).messages[1],
    { role: "assistant", content: "Two" });
  assert.equal(continuation.tokenBody(first), null);
  const body = continuation.completionBody([1, 2], fields, 7);
  assert.deepEqual(body, { temperature: 0, prompt: [1, 2], max_tokens: 2 ** 31, logprobs: 5,
    stream: true, stream_options: { include_usage: true }, seed: 7 });
  assert.equal(continuation.completionBody([1], { max_tokens: 9 }, 7).max_tokens, 9);
});

test("chunks of Completions are read as those of Chat Completions", () => {
  const table = (names, logprobs, top) => ({ tokens: names, token_logprobs: logprobs,
    top_logprobs: top, text_offset: [] });
  const top = { " a": -0.1, " b": -2, " c": -3, " d": -4, " e": -5 };
  const chunks = [
    { choices: [{ text: " a", logprobs: table([" a"], [-0.1], [top]), finish_reason: null }] },
    { choices: [{ text: " z", logprobs: table([" z"], [-9], [{ ...top, " z": -9 }]) }] },
    { choices: [{ text: "", logprobs: table(["<|im_end|>"], [-0.2], [{}]) }] },
    { choices: [{ text: "", logprobs: null, finish_reason: "stop" }] },
    { choices: [], usage: { prompt_tokens: 9, completion_tokens: 2,
      prompt_tokens_details: { cached_tokens: 8 } } },
  ];
  const start = { text: "One", thoughts: "Hm.", tokens: tokensUpTo([], "One") };
  const answer = new Answer(start);
  assert.equal(compare(start, answer), "ahead");
  chunks.forEach((chunk) => answer.push(continuation.asChatChunk(chunk)));
  assert.equal(answer.text, "One a z");
  assert.equal(answer.thoughts, "Hm.");
  assert.equal(answer.finish, "stop");
  assert.deepEqual([answer.usage.prompt, answer.usage.cached], [9, 8]);
  const found = answer.scored.tokens;
  assert.deepEqual(textsOf(found), ["One", " a", " z", ""]);
  assert.deepEqual(found.map((it) => it.top.length), [0, 5, 5, 0]);
  assert.equal(found.at(-1).own, "<|im_end|>");
});

test("settings ask for probabilities, and are told in a few words", () => {
  const settings = { ...EMPTY_SETTINGS, probabilities: "on", seed: "3", system: "x" };
  assert.deepEqual(readSettings(settings), {
    fields: { seed: 3, logprobs: true, top_logprobs: 5 },
    problems: {},
  });
  assert.equal(settingsLine(settings), "Seed 3 · System prompt");
  assert.equal(settingsLine(EMPTY_SETTINGS), "");
});

test("files have where an answer left another one, and no probabilities", () => {
  const conversation = newConversation(5, { title: "T" });
  const turns = [{ id: "a", parent: null, role: "user", text: "Hi", files: [], created: 1 }, {
    id: "b", parent: "a", role: "assistant", text: "One two", thoughts: "", calls: [], created: 2,
    state: "done", seed: 4, asked: { fields: {}, from: { text: "One", token: " two" } },
    tokens: listOf([[entry("One two")], "One two"]),
  }];
  const text = toJson([{ conversation, turns }]);
  assert.equal(text.includes("logprob"), false);
  const [read] = fromJson(text, 9);
  assert.equal(read.turns[1].tokens, undefined);
  assert.deepEqual(read.turns[1].asked.from, { text: "One", token: " two" });
  // A file from before there were probabilities.
  const old = text.replace(/ +"probabilities": "",\n/, "");
  assert.notEqual(old, text);
  assert.equal(fromJson(old, 9)[0].conversation.settings.probabilities, "");
});
