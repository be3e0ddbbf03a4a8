// Receives one answer, and keeps it in the store while it comes.
//
// The turn is in the store before the request is sent and after each part, so that a reload loses
// at most the last half second. If a part was kept, the same request with the same seed is sent
// again: while the new answer is behind the kept one, the kept one stays; if the two differ, the
// generation ends as "differs" and has the new answer, and the kept one was not changed. An answer
// that goes on from a token of another one (`asked.from`) begins with its text up to there.

import { Answer, compare, shareAgain } from "./answer.js";
import { asChatChunk, completionBody, conversationBody, joinedBody, tokenBody }
  from "./continuation.js";
import { chatBody } from "./request.js";
import { ServerError } from "./server.js";
import { tokensUpTo } from "./token_list.js";

const SAVE_MS = 500;
// A long answer is saved less often: this many milliseconds for each 1,000 characters.
const SAVE_MS_PER_1000 = 2;
const RETRY_MS = 1_000;
const N_TRIES_MAX = 30;

export class Generation {
  /** "waiting", "changing", "loading", "busy", "reading", "again", "answering" or "ended". */
  phase = "waiting";
  /** The task that changes the model, while the answer waits for it. */
  change = null;
  progress = null;
  /** How much of a kept answer has come again, from 0 to 1. */
  share = 0;
  startedMs;
  firstMs = null;
  textMs = null;
  /** Why an answer that was complete before could not be computed again, in one line. */
  problem = null;
  #answer;
  #abort = new AbortController();
  #kept;
  #isAhead;
  #stateBefore;
  #store;
  #onChange;
  #onUnkept;
  #nTries = 0;
  #lastSaveMs = 0;
  #saving = Promise.resolve();

  /**
   * `turn` has `asked.fields` and `seed`; its text, thoughts and calls are the kept part, and
   * `stateBefore` is the state that it has if the answer differs. `onUnkept(error)` is called if
   * the store refuses it.
   */
  constructor({ turn, messages, stateBefore, store, onChange, onUnkept }) {
    this.turn = turn;
    this.messages = messages;
    this.#answer = new Answer(startOf(turn));
    this.#kept = hasAnything(turn) ? { ...turn } : null;
    this.#isAhead = this.#kept === null || compare(this.#kept, this.#answer) === "ahead";
    this.#stateBefore = stateBefore;
    this.#store = store;
    this.#onChange = onChange;
    this.#onUnkept = onUnkept;
    this.startedMs = performance.now();
  }

  get nPieces() {
    return this.#answer.nPieces;
  }

  stop() {
    this.#abort.abort();
  }

  /** Returns the fresh answer if it differs from the kept part, otherwise null. */
  async run(server) {
    this.#store.setReceiving(this.turn.id, () => this.stop());
    let end;
    try {
      end = await this.#receive(server);
    } catch (error) {
      end = this.#failure(error);
    }
    this.#store.setReceiving(this.turn.id, null);
    this.phase = "ended";
    const isOther = end.state === "differs";
    if (isOther) this.#set({ state: this.#stateBefore });
    else this.#set({ ...end, ...(this.#isAhead && this.#facts()) });
    await this.#save();
    this.#onChange(this);
    return isOther ? this.#fresh() : null;
  }

  async #receive(server) {
    for (;;) {
      try {
        for await (const chunk of this.#chunks(server)) {
          if (!this.#take(chunk)) return { state: "differs" };
        }
        break;
      } catch (error) {
        if (error.kind !== "loading" || this.#answer.nPieces > 0) throw error;
        await this.#waitForServer(server, error);
      }
    }
    // An answer that ends before the kept part does is another answer.
    if (!this.#isAhead) return { state: "differs" };
    return { state: this.#answer.finish === "length" ? "length" : "done", error: null };
  }

  async* #chunks(server) {
    const { signal } = this.#abort;
    const { asked, seed } = this.turn;
    if (!asked.from) {
      yield* server.chat(chatBody(this.messages, asked.fields, seed), signal);
      return;
    }
    const tokens = await promptOf(server, this.messages, this.turn, signal);
    const chunks = server.complete(completionBody(tokens, asked.fields, seed), signal);
    for await (const chunk of chunks) yield asChatChunk(chunk);
  }

  /** Waits for a model that is being loaded; a server that only has no room gets a few tries. */
  async #waitForServer(server, error) {
    const [health, change] = await Promise.all([server.health(), server.change()]);
    this.change = change;
    if (change) {
      this.phase = "changing";
    } else {
      this.#nTries += 1;
      if (health !== "loading" && (health !== "ok" || this.#nTries > N_TRIES_MAX)) throw error;
      this.phase = health === "loading" ? "loading" : "busy";
    }
    this.#onChange(this);
    await pause(RETRY_MS, this.#abort.signal);
  }

  /** Takes a chunk; false if the answer is not the kept one. */
  #take(chunk) {
    const grew = this.#answer.push(chunk);
    this.progress = this.#answer.progress;
    if (grew) {
      this.firstMs ??= performance.now();
      if (this.#answer.text || this.#answer.calls.length > 0) this.textMs ??= performance.now();
      const order = this.#isAhead ? "ahead" : compare(this.#kept, this.#answer);
      if (order === "differs") return false;
      this.#isAhead = order === "ahead";
      this.phase = this.#isAhead ? "answering" : "again";
      if (this.#isAhead) this.#show();
      else this.share = shareAgain(this.#kept, this.#answer);
    } else if (this.phase !== "answering" && this.phase !== "again") {
      this.phase = "reading";
    }
    this.#onChange(this);
    return true;
  }

  #show() {
    const { text, thoughts, calls, model } = this.#answer;
    this.#set({ text, thoughts, calls: calls.map((call) => ({ ...call })), model });
    const wait = Math.max(SAVE_MS, (text.length / 1000) * SAVE_MS_PER_1000);
    if (performance.now() - this.#lastSaveMs > wait) this.#save();
  }

  #fresh() {
    const { text, thoughts, calls, model } = this.#answer;
    return { text, thoughts, calls, model };
  }

  #set(fields) {
    this.turn = { ...this.turn, ...fields };
  }

  #save() {
    this.#lastSaveMs = performance.now();
    const { turn } = this;
    const save = () => this.#store.changeTurn(turn.id, () => turn);
    this.#saving = this.#saving.then(save).catch((error) => this.#onUnkept(error));
    return this.#saving;
  }

  #failure(error) {
    const hasText = hasAnything(this.turn);
    // A complete answer stays one if it could not be computed again.
    if (!this.#isAhead && this.#stateBefore === "done") {
      if (!this.#abort.signal.aborted) this.problem = error.message;
      return { state: "done", error: null };
    }
    if (this.#abort.signal.aborted) return { state: hasText ? "stopped" : "failed", error: null };
    const kind = error instanceof ServerError ? error.kind : "refused";
    return { state: hasText ? "cut" : "failed", error: { kind, message: error.message } };
  }

  /** Counts and times of the answer, as far as they are known. */
  #facts() {
    const now = performance.now();
    const seconds = (from, to) => (from === null || to === null ? null : (to - from) / 1000);
    return {
      usage: this.#answer.usage,
      nPieces: this.#answer.nPieces,
      ...(this.#answer.scored && { tokens: this.#answer.scored.tokens }),
      seconds: {
        first: seconds(this.startedMs, this.firstMs),
        thoughts: this.turn.thoughts ? seconds(this.firstMs, this.textMs ?? now) : null,
        answer: seconds(this.firstMs, now),
      },
    };
  }
}

/** What an answer that goes on from a token begins with. */
function startOf({ asked, thoughts, tokens }) {
  if (!asked.from) return {};
  const text = asked.from.text + asked.from.token;
  return { text, thoughts, tokens: tokensUpTo(tokens, text) };
}

/** The tokens of the conversation, of the answer up to the chosen token, and of that. */
async function promptOf(server, messages, { asked, thoughts }, signal) {
  const about = { thoughts, from: asked.from };
  const before = await server.tokens(conversationBody(messages, about, asked.fields), signal);
  const body = tokenBody(about);
  if (!body) return before;
  const chosen = await server.tokens(body, signal);
  if (chosen.length === 1) return [...before, ...chosen];
  return server.tokens(joinedBody(messages, about, asked.fields), signal);
}

function hasAnything(turn) {
  return turn.text !== "" || turn.thoughts !== "" || turn.calls.length > 0;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("stopped"));
    }, { once: true });
  });
}
