// The tokens of an answer with their probabilities, from the chunks of a stream.
//
// A token has `text`, which is its part of the answer's text, `logprob` (null if it is not known)
// and `top`, the most likely tokens at its place. It has `own`, the text by which the model knows
// it, where that is another one: a marker such as the end, or a part of a character, which also has
// `bytes`. Invariant: the texts of all tokens, put together, are the text of the answer.

// A token takes about 60 bytes in the browser's database, and its alternatives 300.
export const N_TOKENS_MAX = 20_000;
export const N_WITH_TOP_MAX = 2_000;

const BROKEN = "\uFFFD";
const CONTROL = /^<[|｜].+[|｜]>$|^<\/?s>$|^<(?:eos|bos|pad|unk|end_of_turn|start_of_turn)>$/;
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class TokenList {
  tokens;

  /** `tokens` are there already, as those of `tokensUpTo`. */
  constructor(tokens = []) {
    this.tokens = [...tokens];
  }

  /**
   * Takes what a chunk says of its tokens, in the form of Chat Completions, and its text. A chunk
   * has whole characters: one that is in several tokens comes with the last of them.
   */
  push(entries, text) {
    const made = entries.map((entry) => ({ ...readToken(entry), top: readTop(entry) }));
    const texts = divide(made.map(({ text: own }) => own), text);
    if (made.length === 0) this.#addText(text);
    made.forEach(({ text: own, ...token }, index) => {
      const part = texts[index];
      if (this.tokens.length >= N_TOKENS_MAX) {
        this.#addText(part);
        return;
      }
      if (this.tokens.length >= N_WITH_TOP_MAX) token.top = [];
      this.tokens.push({ text: part, ...(own !== part && { own }), ...token });
    });
  }

  /** Text without a token of its own. */
  #addText(text) {
    if (text === "") return;
    const last = this.tokens.at(-1);
    if (last?.logprob === null) this.tokens.splice(-1, 1, { ...last, text: last.text + text });
    else this.tokens.push({ text, logprob: null, top: [] });
  }
}

/** The part of the text that each token stands for. */
function divide(names, text) {
  const texts = names.map(() => "");
  // A marker at the end has no text; what is left then belongs to the token before it.
  let last = names.length - 1;
  if (last > 0 && !names[last].includes(BROKEN) && !text.endsWith(names[last])) last -= 1;
  let rest = text;
  for (let index = 0; index < last; index += 1) {
    if (!rest.startsWith(names[index])) continue;
    texts[index] = names[index];
    rest = rest.slice(names[index].length);
  }
  if (last >= 0) texts[last] = rest;
  return texts;
}

function readTop(entry) {
  const top = Array.isArray(entry.top_logprobs) ? entry.top_logprobs : [];
  return top.map(readToken).sort((a, b) => b.logprob - a.logprob);
}

function readToken({ token, bytes, logprob }) {
  const text = String(token ?? "");
  const known = Number.isFinite(logprob) ? Math.round(logprob * 1e4) / 1e4 : null;
  const read = { text, logprob: known };
  if (text.includes(BROKEN) && !isWhole(bytes)) read.bytes = Array.isArray(bytes) ? bytes : [];
  return read;
}

function isWhole(bytes) {
  if (!Array.isArray(bytes) || bytes.length === 0) return false;
  try {
    strict.decode(Uint8Array.from(bytes));
    return true;
  } catch {
    return false;
  }
}

/** The tokens of the first characters of an answer; what they lack is a token without a number. */
export function tokensUpTo(tokens, text) {
  const kept = [];
  let length = 0;
  for (const token of tokens ?? []) {
    if (length >= text.length || !text.startsWith(token.text, length)) break;
    kept.push(token);
    length += token.text.length;
  }
  const list = new TokenList(kept);
  list.push([], text.slice(length));
  return list.tokens;
}

/** The text before a token. */
export function textBefore(tokens, index) {
  return tokens.slice(0, index).map(({ text }) => text).join("");
}

/** The name of a token: the text by which the model knows it. */
export function nameOf(token) {
  return token.own ?? token.text;
}

/** What can be chosen at the place of a token: the most likely ones, and the one that was. */
export function choicesAt(token) {
  const chosen = { text: nameOf(token), logprob: token.logprob, isChosen: true };
  if (token.bytes) chosen.bytes = token.bytes;
  const isSame = (it) => it.text === chosen.text && String(it.bytes) === String(chosen.bytes);
  const found = token.top.findIndex(isSame);
  if (found < 0) return [...token.top, chosen];
  return token.top.map((it, index) => (index === found ? { ...it, isChosen: true } : it));
}

/** Why an answer cannot go on with a choice at this place, in one line, or null. */
export function obstacle(tokens, index, choice) {
  if (choice.logprob === null) return "It is not known as a token.";
  if (choice.bytes) return "It is a part of a character.";
  if (CONTROL.test(choice.text)) return "It would end the answer here.";
  if (choice.text === "") return "It has no text.";
  if (nMissingBytes(tokens, index) > 0) return "The character before it is not complete.";
  return null;
}

/** How many bytes the character before a token still needs. */
function nMissingBytes(tokens, index) {
  let first = index;
  while (first > 0 && tokens[first - 1].bytes) first -= 1;
  let nMissing = 0;
  for (const token of tokens.slice(first, index)) {
    // Where bytes are not told, a token whose text lacks only its end has begun a character.
    if (token.bytes.length === 0) {
      nMissing = nameOf(token).replace(/\uFFFD+$/, "") === token.text ? 1 : 0;
    }
    for (const byte of token.bytes) {
      if (nMissing > 0 && byte >= 0x80 && byte < 0xc0) nMissing -= 1;
      else if (byte >= 0xf0 && byte < 0xf8) nMissing = 3;
      else if (byte >= 0xe0 && byte < 0xf0) nMissing = 2;
      else nMissing = byte >= 0xc0 && byte < 0xe0 ? 1 : 0;
    }
  }
  return nMissing;
}

/** A class of shades, from what the model was sure of to what it hardly expected. */
export function classOf(logprob) {
  if (logprob === null) return "unknown";
  const probability = Math.exp(logprob);
  if (probability >= 0.9) return "sure";
  if (probability >= 0.5) return "likely";
  return probability >= 0.1 ? "open" : "rare";
}

/** "97.31 %"; only a certain token has 100 %. */
export function probabilityText(logprob) {
  if (logprob === null) return "not known";
  const percent = Math.exp(logprob) * 100;
  if (logprob === 0) return "100 %";
  if (percent > 99.99) return "over 99.99 %";
  if (percent < 0.01) return "under 0.01 %";
  return `${percent.toFixed(percent < 10 ? 2 : 1)} %`;
}

export function logprobText(logprob) {
  if (logprob === null) return "–";
  if (logprob === 0) return "0";
  return `−${Math.abs(logprob).toFixed(Math.abs(logprob) < 10 ? 3 : 1)}`;
}

/** A token as it is seen: spaces and line breaks have signs. */
export function visibleName({ text, bytes }) {
  if (bytes?.length > 0) {
    const hex = bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0"));
    return `bytes ${hex.join(" ")}`;
  }
  if (text === "") return "(empty)";
  return text.replaceAll(" ", "␣").replaceAll("\r", "␍").replaceAll("\n", "↵")
    .replaceAll("\t", "⇥");
}

/** A token as it is read aloud. */
export function spokenName(token) {
  if (token.bytes?.length > 0) return visibleName(token);
  const words = token.text.replaceAll("\n", " line break ").replaceAll("\t", " tab ").trim();
  return words === "" ? "space" : words;
}
