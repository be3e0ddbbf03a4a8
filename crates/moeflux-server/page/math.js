// Finds mathematics in Markdown, so that it is shown as it was written.
//
// Recognised are $$..$$, \[..\], \(..\) and $..$. A single dollar counts only if no blank follows
// it and no blank precedes the closing one, which no digit follows: "$5 and $6" are prices.
// The rules are extensions of marked, of the types "mathBlock" and "mathInline".

const BLOCK = /^(?:\$\$[\s\S]+?\$\$|\\\[[\s\S]+?\\\])(?=[ \t]*(?:\n|$))/;
const INLINE = [
  /^\$\$(?!\$)[^\n]+?\$\$/,
  /^\\\([\s\S]+?\\\)/,
  /^\\\[[^\n]+?\\\]/,
  /^\$(?![\s$])(?:\\.|[^$\\\n])*?(?<![\s\\])\$(?!\d)/,
];

const blockRule = {
  name: "mathBlock",
  level: "block",
  // Asked for the rest of the text at each paragraph, so that it must be cheap.
  start(text) {
    const places = ["\n$$", "\n\\["].map((mark) => text.indexOf(mark)).filter((it) => it >= 0);
    return places.length > 0 ? Math.min(...places) : undefined;
  },
  tokenizer(text) {
    const found = BLOCK.exec(text);
    return found ? { type: "mathBlock", raw: found[0], text: found[0] } : undefined;
  },
};

const inlineRule = {
  name: "mathInline",
  level: "inline",
  start: (text) => indexOrNone(text.search(/\$|\\[([]/)),
  tokenizer(text) {
    const found = INLINE.map((rule) => rule.exec(text)).find((match) => match);
    return found ? { type: "mathInline", raw: found[0], text: found[0] } : undefined;
  },
};

function indexOrNone(index) {
  return index < 0 ? undefined : index;
}

/** The extensions; `escape` makes a text safe as HTML. */
export function mathRules(escape) {
  return [
    { ...blockRule, renderer: (token) => `<pre class="math">${escape(token.text)}</pre>\n` },
    { ...inlineRule, renderer: (token) => `<code class="math">${escape(token.text)}</code>` },
  ];
}
