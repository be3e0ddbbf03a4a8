// Cuts a Markdown text that grows into blocks, so that only the last one is made again.
//
// Invariant: the texts of all blocks, in order, are the text without the lines of fences; a block
// that was returned as done never changes. A block that is too long is cut at a line, so that one
// step stays cheap. Links that are defined after their use stay text. The lexer is passed in (`lex`
// turns a text into marked's tokens).

// What is lexed and rendered in one step. Larger steps take longer than a frame.
const STEP_CHARACTERS = 3_000;
// A single block, such as a table, may be so long before it is cut.
export const BLOCK_CHARACTERS_MAX = 16_000;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^\n]*)(?:\n|$)/;
const OPEN_MATH = /^(?:\$\$(?![\s\S]*\$\$)|\\\[(?![\s\S]*\\\]))/;

export class BlockCutter {
  #lex;
  #text = "";
  #done = 0;
  #fence = null;

  constructor(lex) {
    this.#lex = lex;
  }

  /** Takes the whole text so far, which continues that of the last call. */
  setText(text) {
    this.#text = text;
  }

  /**
   * Returns `{done, last, isMore}`: blocks that are complete, the block that may still grow (or
   * null), and whether another step would find more. With `isEnd`, all blocks are complete.
   * A block is `{kind: "markdown", raw, tokens}`, of which one step gives few, or `{kind: "code",
   * language, text, isFirst, isClosed}`; one with `isFirst: false` continues the one before it.
   */
  step(isEnd) {
    const began = this.#done;
    if (began === this.#text.length) return { done: [], last: null, isMore: false };
    let result = this.#take(STEP_CHARACTERS, isEnd);
    const isLong = this.#done === began && this.#text.length > began + STEP_CHARACTERS;
    if (isLong) result = this.#take(BLOCK_CHARACTERS_MAX, isEnd);
    const isMore = this.#done > began && this.#done < this.#text.length && result.last === null;
    return { ...result, isMore };
  }

  #take(nCharacters, isEnd) {
    const rest = this.#text.slice(this.#done, this.#done + nCharacters);
    const isWhole = this.#done + rest.length === this.#text.length;
    const piece = { rest, isWhole, isLast: isWhole && isEnd };
    return this.#fence ? this.#insideFence(piece) : this.#outside(piece);
  }

  #outside({ rest, isWhole, isLast }) {
    const opened = FENCE.exec(rest);
    if (opened && !(opened[2][0] === "`" && opened[3].includes("`"))) {
      // The line that opens a fence must be whole before its language is known.
      if (isWhole && !isLast && !opened[0].endsWith("\n")) return { done: [], last: null };
      return this.#openFence(opened);
    }
    const tokens = this.#lex(rest);
    // A fence at the end may be open: the next step begins with it.
    const isFenceNext = isFence(tokens.at(-1));
    const nDone = isFenceNext ? tokens.length - 1 : isLast ? tokens.length : nComplete(tokens);
    const complete = tokens.slice(0, nDone);
    const taken = complete.reduce((sum, token) => sum + token.raw.length, 0);
    const isLong = rest.length === BLOCK_CHARACTERS_MAX;
    if (taken === 0 && !isWhole) return isLong ? this.#cutLong(rest) : { done: [], last: null };
    this.#done += taken;
    const isShown = isWhole && !isFenceNext && nDone < tokens.length;
    return { done: blocksOf(complete), last: isShown ? markdown(tokens.slice(nDone)) : null };
  }

  /** A single block that is too long: cut after its last line, blank or character. */
  #cutLong(rest) {
    const at = [rest.lastIndexOf("\n") + 1, rest.lastIndexOf(" ") + 1, rest.length]
      .find((place) => place > rest.length / 2);
    this.#done += at;
    return { done: [markdown(this.#lex(rest.slice(0, at)))], last: null };
  }

  #openFence([line, indent, mark, info]) {
    const language = info.trim().split(/[\s{]/)[0].toLowerCase();
    const run = mark[0] === "`" ? "`" : "~";
    this.#fence = { indent: indent.length, language, close: closing(run, mark.length) };
    this.#done += line.length;
    return { done: [this.#code("", true, false)], last: null };
  }

  #insideFence({ rest, isLast }) {
    const close = this.#fence.close.exec(rest);
    if (close && (close[0].endsWith("\n") || isLast)) {
      const code = this.#code(rest.slice(0, close.index), false, true);
      this.#fence = null;
      this.#done += close.index + close[0].length;
      return { done: [code], last: null };
    }
    // Up to the last line break nothing changes any more; a very long line is taken as it is.
    const isLong = !isLast && rest.length >= STEP_CHARACTERS;
    const end = isLast ? rest.length : rest.lastIndexOf("\n") + 1 || (isLong ? rest.length : 0);
    this.#done += end;
    const done = end > 0 ? [this.#code(rest.slice(0, end), false, isLast)] : [];
    const left = rest.slice(end);
    const isShown = left !== "" && !isLong && !/^ {0,3}[`~]+$/.test(left);
    return { done, last: isShown ? this.#code(left, false, false) : null };
  }

  #code(text, isFirst, isClosed) {
    const { indent, language } = this.#fence;
    const bare = indent > 0 ? text.replace(new RegExp(`^ {1,${indent}}`, "gm"), "") : text;
    return { kind: "code", language, text: bare, isFirst, isClosed };
  }
}

/**
 * How many tokens cannot change. The last one can, blank lines behind a list may be inside of it,
 * and mathematics that has begun may have blank lines.
 */
function nComplete(tokens) {
  const open = tokens.findIndex((token) => token.type === "paragraph" && OPEN_MATH.test(token.raw));
  const last = open >= 0 ? open : tokens.length - 1;
  return tokens[last]?.type === "space" && tokens[last - 1]?.type === "list" ? last - 1 : last;
}

function closing(run, length) {
  return new RegExp(`^ {0,3}${run}{${length},}[ \\t]*(?:\\n|$)`, "m");
}

function isFence(token) {
  return token?.type === "code" && FENCE.test(token.raw);
}

/** Tokens as blocks: fenced code alone, and what is between together. */
function blocksOf(tokens) {
  const blocks = [];
  let between = [];
  const end = () => {
    if (between.length > 0) blocks.push(markdown(between));
    between = [];
  };
  for (const token of tokens) {
    if (isFence(token)) {
      end();
      const language = (token.lang ?? "").split(/[\s{]/)[0].toLowerCase();
      const text = `${token.text}\n`;
      blocks.push({ kind: "code", language, text, isFirst: true, isClosed: true });
    } else {
      between.push(token);
    }
  }
  end();
  return blocks;
}

function markdown(tokens) {
  return { kind: "markdown", raw: tokens.map(({ raw }) => raw).join(""), tokens };
}
