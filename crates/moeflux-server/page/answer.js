// Puts together the chunks of a streamed answer, and compares it with a part that was kept.
//
// `Answer` has the texts so far. If the server gives the same answer again from its beginning,
// `compare` says whether it has passed the kept part yet, or differs from it.

import { TokenList } from "./token_list.js";

export class Answer {
  text = "";
  thoughts = "";
  calls = [];
  finish = null;
  usage = null;
  progress = null;
  model = null;
  nPieces = 0;
  /** A TokenList, once the server told a probability. */
  scored = null;

  /** An answer that goes on begins with the text, thoughts and tokens of another one. */
  constructor({ text = "", thoughts = "", tokens = [] } = {}) {
    this.text = text;
    this.thoughts = thoughts;
    if (tokens.length > 0) this.scored = new TokenList(tokens);
  }

  /** Takes one event of the stream, and returns whether the answer grew. */
  push(chunk) {
    if (chunk.model) this.model = chunk.model;
    if (chunk.usage) this.usage = usageOf(chunk.usage);
    if (chunk.prompt_progress) {
      const left = chunk.prompt_progress.seconds_left ?? chunk.seconds_left ?? null;
      this.progress = { ...chunk.prompt_progress, seconds_left: left };
    }
    const choice = chunk.choices?.[0];
    if (!choice) return false;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    this.#score(choice.logprobs?.content ?? [], choice.delta?.content ?? "");
    return this.#delta(choice.delta ?? {});
  }

  #score(entries, text) {
    if (!this.scored && entries.length === 0) return;
    if (!this.scored) {
      this.scored = new TokenList();
      this.scored.push([], this.text);
    }
    this.scored.push(entries, text);
  }

  #delta(delta) {
    const thoughts = delta.reasoning_content ?? delta.reasoning ?? "";
    const text = delta.content ?? "";
    const calls = delta.tool_calls ?? [];
    this.thoughts += thoughts;
    this.text += text;
    calls.forEach((call) => this.#call(call));
    const grew = thoughts !== "" || text !== "" || calls.length > 0;
    if (grew) this.nPieces += 1;
    return grew;
  }

  #call({ index = 0, id, function: made = {} }) {
    this.calls[index] ??= { id: "", name: "", arguments: "" };
    const call = this.calls[index];
    if (id) call.id = id;
    if (made.name) call.name = made.name;
    call.arguments += made.arguments ?? "";
  }
}

function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    answer: usage.completion_tokens ?? 0,
    thoughts: usage.completion_tokens_details?.reasoning_tokens ?? 0,
  };
}

/**
 * How a fresh answer stands to the kept part of the same one: "behind" while it has not passed the
 * kept part, "ahead" once it has all of it, "differs" if it is another answer.
 */
export function compare(kept, fresh) {
  const pairs = [
    [kept.thoughts ?? "", fresh.thoughts],
    [kept.text ?? "", fresh.text],
    [callText(kept.calls), callText(fresh.calls)],
  ];
  const agrees = ([old, now]) => now.startsWith(old) || old.startsWith(now);
  if (!pairs.every(agrees)) return "differs";
  return pairs.every(([old, now]) => now.length >= old.length) ? "ahead" : "behind";
}

/** Names and arguments only: the server draws a new id for each call. */
function callText(calls = []) {
  return calls.map((call) => `${call.name}(${call.arguments}`).join("\n");
}

/** The share of a kept answer that came again, from 0 to 1. */
export function shareAgain(kept, fresh) {
  const length = (answer) => (answer.thoughts ?? "").length + (answer.text ?? "").length;
  return length(kept) === 0 ? 1 : Math.min(1, length(fresh) / length(kept));
}
