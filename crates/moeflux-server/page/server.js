// Asks the server, and turns what goes wrong into one line with a kind.
//
// A key is asked for when the server wants one, once for all requests that wait for it, and sent as
// a header only. Invariant: every request goes to the origin of the page.

import { EventParser } from "./sse.js";
import { keepServerKey, serverKey } from "./kept.js";

const MACHINE_PATH = "/moeflux/machine";
const LOADING_RETRY_MS = 1_000;
const START_HEADER = "x-moeflux-start";

/**
 * `kind`: "offline", "key", "loading", "length", "busy", "cut", "missing" or "refused". `code` is
 * that of the server, if it gave one.
 */
export class ServerError extends Error {
  constructor(kind, message, code = null) {
    super(message);
    this.kind = kind;
    this.code = code;
  }
}

export class Server {
  #askForKey;
  #asking = null;
  /** What proves that this page is of the server that runs now; null until it is needed. */
  #start = null;

  /** `askForKey(wasRefused)` returns the key that a person typed, or null. */
  constructor(askForKey) {
    this.#askForKey = askForKey;
  }

  async props() {
    return (await this.#fetch("/props")).json();
  }

  /**
   * The same as soon as a model answers. `onWait(error)` returns whether to wait on; null if not,
   * or if waiting does not help.
   */
  async propsOnceLoaded(onWait) {
    for (;;) {
      try {
        return await this.props();
      } catch (error) {
        const isTemporary = error.kind === "loading" || error.kind === "offline";
        if (!onWait(error) || !isTemporary) return null;
        await new Promise((resolve) => setTimeout(resolve, LOADING_RETRY_MS));
      }
    }
  }

  /** "ok", "loading", "broken", "closed" or "offline". */
  async health() {
    try {
      const response = await fetch("/health");
      return (await response.json()).status;
    } catch {
      return "offline";
    }
  }

  /** The number of tokens of a text (a string) or of a conversation (messages). */
  async countTokens(what, signal) {
    const body = typeof what === "string" ? { content: what } : { messages: what };
    // Nobody who types wants a question for the key.
    const response = await this.#post("/tokenize", body, { signal, isQuiet: true });
    return (await response.json()).count;
  }

  /** The tokens of a text or a conversation, as their ids. */
  async tokens(body, signal) {
    return (await (await this.#post("/tokenize", body, { signal })).json()).tokens;
  }

  /** The chunks of a streamed answer. */
  chat(body, signal) {
    return this.#chunks("/v1/chat/completions", body, signal);
  }

  /** The chunks of a streamed text that goes on with tokens. */
  complete(body, signal) {
    return this.#chunks("/v1/completions", body, signal);
  }

  async* #chunks(path, body, signal) {
    const response = await this.#post(path, body, { signal });
    for await (const data of this.#events(response, signal)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(kindOf(0, chunk.error), chunk.error.message);
      yield chunk;
    }
    throw new ServerError("cut", "The connection ended before the answer did.");
  }

  /** Whether the server tells the state of the machine; older ones do not. */
  async hasMachine() {
    const abort = new AbortController();
    try {
      await this.#fetch(MACHINE_PATH, { signal: abort.signal }, true);
      return true;
    } catch (error) {
      return error.kind !== "missing";
    } finally {
      abort.abort();
    }
  }

  /** The states of the machine, the first at once, then whenever it has changed. */
  async* machine(signal) {
    const response = await this.#fetch(MACHINE_PATH, { signal });
    for await (const data of this.#events(response, signal)) yield JSON.parse(data);
    throw new ServerError("cut", "The connection to the server was lost.");
  }

  /**
   * The `layers` with the uses of their experts, none if the server does not count them, and the
   * times of the `last_token`, null if it does not know them.
   */
  async experts(signal) {
    return (await this.#fetch("/moeflux/experts", { signal }, true)).json();
  }

  /** The models that can be chosen, with what the server may do. */
  async models() {
    return (await this.#fetch("/moeflux/models", {}, true)).json();
  }

  /** What the server does to its models, or did last; null if it has done nothing. */
  async task() {
    return (await (await this.#fetch("/moeflux/task", {}, true)).json()).task;
  }

  /** The task that changes the model now, or null. Older servers and closed doors have none. */
  async change() {
    try {
      const task = await this.task();
      return task?.kind === "load" && task.state === "running" ? task : null;
    } catch {
      return null;
    }
  }

  /** Asks for something about models: "offer", "pull", "load", "cancel" or "remove". */
  async manage(what, body, signal) {
    this.#start ??= document.querySelector("meta[name=moeflux-start]")?.content ?? "";
    const ask = async () => {
      const headers = { [START_HEADER]: this.#start };
      return (await this.#post(`/moeflux/${what}`, body, { signal, headers })).json();
    };
    try {
      return await ask();
    } catch (error) {
      if (error.code !== "stale_start") throw error;
      // The server was started again since this page was loaded.
      this.#start = await newStart(signal);
      return ask();
    }
  }

  /** The data of the events of a response, until it ends. */
  async* #events(response, signal) {
    const parser = new EventParser();
    const reader = response.body.getReader();
    for (;;) {
      const { value, done } = await this.#read(reader, signal);
      if (done) return;
      yield* parser.push(value);
    }
  }

  async #read(reader, signal) {
    try {
      return await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ServerError("cut", "The connection to the server was lost.");
    }
  }

  #post(path, body, { signal, isQuiet = false, headers = {} }) {
    const options = {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
      signal,
    };
    return this.#fetch(path, options, isQuiet);
  }

  async #fetch(path, options = {}, isQuiet = false) {
    for (;;) {
      const key = serverKey();
      const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
      const response = await send(path, { ...options, headers });
      if (response.ok) return response;
      if (response.status !== 401) throw await errorOf(response);
      // Another request may have brought a newer key meanwhile.
      if (key !== serverKey()) continue;
      if (isQuiet) throw new ServerError("key", "The server wants a key.");
      await this.#newKey(key !== "");
    }
  }

  async #newKey(wasRefused) {
    this.#asking ??= this.#askForKey(wasRefused);
    const key = await this.#asking;
    this.#asking = null;
    if (!key) throw new ServerError("key", "The server wants a key.");
    keepServerKey(key);
  }
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError("offline", "The server does not answer. Is it still running?");
  }
}

async function errorOf(response) {
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // A proxy may answer with something that is not JSON.
  }
  const message = error?.message ?? `The server answered with status ${response.status}.`;
  return new ServerError(kindOf(response.status, error), message, error?.code ?? null);
}

async function newStart(signal) {
  const response = await send("/", { headers: { accept: "text/html" }, cache: "no-store", signal });
  return /<meta name="moeflux-start" content="([^"]*)">/.exec(await response.text())?.[1] ?? "";
}

function kindOf(status, error) {
  if (error?.code === "context_length_exceeded") return "length";
  if (status === 404) return "missing";
  if (status === 503) return "loading";
  if (status === 429) return "busy";
  return "refused";
}
