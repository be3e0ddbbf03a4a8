// Files of conversations: what is written is read again, and strange files give one line.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page";
const { fromJson, newConversation, toJson } = await import(`${PAGE}/portable.js`);
const { fromMarkdown, toMarkdown } = await import(`${PAGE}/markdown_file.js`);
const { shownBranch } = await import(`${PAGE}/turns.js`);

function example() {
  const conversation = newConversation(1000, { title: "Looks -- and <!-- x -->" });
  conversation.settings.system = "Be brief.\n\n## You\n";
  const of = (turn) => ({ conversation: conversation.id, ...turn });
  const turns = [
    of({ id: "1", parent: null, created: 1, role: "user", text: "Hi\n<!-- moeflux: user -->\nyou",
      files: [{ name: "a \"b\".txt", text: "one\n\\<!-- moeflux: file -->\n" }] }),
    of({ id: "2", parent: "1", created: 2, role: "assistant", text: "", thoughts: "Hm\n\n",
      calls: [{ id: "c1", name: "f", arguments: "{\"x\": 1}" }], state: "done", seed: 5,
      asked: { fields: { top_k: 3 } } }),
    of({ id: "3", parent: "2", created: 3, role: "tool",
      results: [{ id: "c1", name: "f", content: "red\n" }] }),
    of({ id: "4", parent: "3", created: 4, role: "assistant", text: "# Red\n\nYes.", thoughts: "",
      calls: [], state: "done" }),
    of({ id: "5", parent: "3", created: 5, role: "assistant", text: "Other", thoughts: "",
      calls: [], state: "running" }),
  ];
  conversation.chosen = { 3: "4" };
  return { conversation, turns };
}

const bare = (turns) => turns.map(({ id, parent, conversation, created, ...rest }) => rest);

test("JSON keeps turns, branches and settings under new ids", () => {
  const { conversation, turns } = example();
  const [read] = fromJson(toJson([{ conversation, turns }]), 9000);
  assert.equal(read.conversation.title, conversation.title);
  assert.deepEqual(read.conversation.settings, conversation.settings);
  assert.notEqual(read.conversation.id, conversation.id);
  const wanted = bare(turns);
  // An answer that was coming when the file was written does not come any more.
  wanted[4].state = "cut";
  assert.deepEqual(bare(read.turns), wanted);
  assert.ok(read.turns.every((turn) => turn.conversation === read.conversation.id));
  const branch = shownBranch(read.turns, read.conversation.chosen);
  const texts = branch.map(({ turn }) => turn.text);
  assert.deepEqual(texts, [turns[0].text, "", undefined, "# Red\n\nYes."]);
  assert.deepEqual(branch.at(-1).siblings.length, 2);
});

test("Markdown keeps the shown branch, to the letter", () => {
  const { conversation, turns } = example();
  const branch = shownBranch(turns, conversation.chosen).map(({ turn }) => turn);
  const text = toMarkdown([{ conversation, turns: branch }, { conversation, turns: branch }]);
  const list = fromMarkdown(text, 9000);
  assert.equal(list.length, 2);
  for (const read of list) {
    assert.equal(read.conversation.title, conversation.title);
    assert.equal(read.conversation.settings.system, conversation.settings.system);
    const wanted = bare(branch).map(({ seed, asked, ...turn }) => turn);
    assert.deepEqual(bare(read.turns), wanted);
    assert.equal(shownBranch(read.turns, {}).length, branch.length);
  }
});

test("messages of a request are read", () => {
  const call = { id: "a", function: { name: "f", arguments: "{}" } };
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "Hi" }] },
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "a", content: "red" },
    { role: "assistant", content: "Red." },
  ];
  for (const file of [messages, { messages }]) {
    const [{ conversation, turns }] = fromJson(JSON.stringify(file), 1);
    assert.equal(conversation.settings.system, "Be brief.");
    assert.deepEqual(turns.map(({ role }) => role), ["user", "assistant", "tool", "assistant"]);
    assert.equal(shownBranch(turns, {}).length, 4);
  }
});

test("other files give one line", () => {
  const empty = "{\"format\": \"moeflux conversations\"}";
  for (const text of ["", "{", "null", "3", "{}", "[]", empty]) {
    assert.throws(() => fromJson(text, 1), (error) => !error.message.includes("\n"), text);
  }
  assert.throws(() => fromMarkdown("# Hello\n", 1), /no conversation of moeflux/);
});

test("fields of a strange type become texts", () => {
  const file = {
    format: "moeflux conversations",
    conversations: [{ title: 3, chosen: { root: "x" }, turns: [
      { id: "x", parent: null, role: "assistant", text: 5, calls: [{ name: {} }, null] },
      { id: "y", parent: "x", role: "intruder", text: "?" },
      { id: "z", parent: "z", role: "tool" }] }],
  };
  const [{ conversation, turns }] = fromJson(JSON.stringify(file), 1);
  assert.equal(conversation.title, "");
  assert.deepEqual(turns.map(({ role }) => role), ["assistant", "tool"]);
  assert.equal(turns[0].text, "5");
  assert.equal(typeof turns[0].calls[1].name, "string");
  assert.deepEqual(turns[1].results, []);
});
