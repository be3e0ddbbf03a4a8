// Markdown that grows: however it is cut, the same blocks come out, and each step is small.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page";
const { BlockCutter, BLOCK_CHARACTERS_MAX } = await import(`${PAGE}/blocks.js`);
const { Marked } = await import(`${PAGE}/vendor/marked.esm.js`);
const { mathRules } = await import(`${PAGE}/math.js`);

const marked = new Marked();
marked.use({ extensions: mathRules((text) => text) });
const lex = (text) => marked.lexer(text);

/** All blocks of a text that grows by `size` characters, with parts of code put together. */
function cut(text, size) {
  const cutter = new BlockCutter(lex);
  const blocks = [];
  let nSteps = 0;
  for (let end = 0; end <= text.length + size; end += size) {
    const isEnd = end >= text.length;
    cutter.setText(text.slice(0, end));
    for (let isMore = true; isMore;) {
      const step = cutter.step(isEnd);
      for (const block of step.done) {
        if (block.kind === "code" && !block.isFirst) blocks.at(-1).text += block.text;
        else if (block.kind === "code") blocks.push({ ...block });
        else blocks.push(...block.tokens.map(({ raw }) => ({ kind: "markdown", text: raw })));
      }
      if (isEnd) assert.equal(step.last, null);
      isMore = step.isMore;
      nSteps += 1;
      assert.ok(nSteps < 10 * text.length + 1000, "no end");
    }
  }
  return blocks.filter(({ text: shown }) => shown.trim() !== "");
}

const TEXT = [
  "# Title", "A paragraph\nof two lines.", "- one\n- two\n\n  inside\n- three", "1. a\n2. b",
  "```python\nprint(1)\n\n```x\n```", "~~~\n```\n~~~", "> quoted\n> more",
  "| a | b |\n|---|---|\n| 1 | 2 |", "$$\nx\n\ny\n$$", "```\nopen ``\n``",
].join("\n\n");

test("blocks do not depend on how the text came", () => {
  const whole = cut(TEXT, TEXT.length);
  assert.deepEqual(whole.filter(({ kind }) => kind === "code").map(({ language, text }) =>
    [language, text]), [["python", "print(1)\n\n```x\n"], ["", "```\n"], ["", "open ``\n``"]]);
  for (const size of [1, 2, 3, 5, 7, 11, 50]) {
    assert.deepEqual(cut(TEXT, size).map(({ text }) => text.trim()),
      whole.map(({ text }) => text.trim()), `pieces of ${size}`);
  }
});

test("nothing is lost, and long blocks are cut", () => {
  const long = [
    "word ".repeat(30_000),
    "x".repeat(100_000),
    Array.from({ length: 8000 }, (_, index) => `${index}. item`).join("\n"),
    `| a |\n|---|\n${"| cell |\n".repeat(9000)}`,
    "$".repeat(50_000),
    "[".repeat(20_000),
  ];
  for (const text of long) {
    const blocks = cut(text, 997);
    assert.equal(blocks.map(({ text: part }) => part).join(""), text);
    assert.ok(blocks.every(({ text: part }) => part.length <= BLOCK_CHARACTERS_MAX));
  }
  const code = `\`\`\`js\n${"let a = 1;\n".repeat(20_000)}\`\`\`\n\nEnd.`;
  const blocks = cut(code, 4001);
  assert.deepEqual(blocks.map(({ text }) => text.length), [220_000, 4]);
});

test("mathematics stays as it was written, and prices are prices", () => {
  const texts = {
    "Let $a_1 * b_2 * c$ be": ["$a_1 * b_2 * c$"],
    "\\(x_i\\) and \\[y_*z_*\\]": ["\\(x_i\\)", "\\[y_*z_*\\]"],
    "$$x_1$$ inside": ["$$x_1$$"],
    "It costs $5 and $6.": [],
    "$ 5 $": [],
    "`$x$`": [],
  };
  for (const [text, wanted] of Object.entries(texts)) {
    const found = [];
    marked.walkTokens(lex(text), ({ type, text: raw }) => {
      if (type === "mathInline") found.push(raw);
    });
    assert.deepEqual(found, wanted, text);
  }
  assert.equal(lex("$$\na_1\n\nb_1\n$$\n\nText")[0].type, "mathBlock");
  assert.equal(lex("\\[\na\n\\]")[0].type, "mathBlock");
});
