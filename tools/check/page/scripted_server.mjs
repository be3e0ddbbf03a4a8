// A server whose answers the checks write, with the API of `moeflux serve` as far as the page uses
// it. The page itself comes from the address that is checked, with its headers.
import http from "node:http";

const PIECE_CHARACTERS = 5;
const END = "<|im_end|>";

export class ScriptedServer {
  /** What the model says: body of the request → script (see `#stream`), may be replaced. */
  answer = () => ({ text: "Hello." });
  props = {
    model: "scripted-model",
    version: "0.0.0",
    build: "moeflux (scripted)",
    max_model_len: 8192,
    default_generation_settings: { n_ctx: 8192, params: { temperature: 0.6, top_k: 20 } },
    chat_template_caps: { supports_tools: true, supports_thinking: true },
  };
  health = "ok";
  key = null;
  /** A ScriptedMachine; without one, the server is older than the view of the machine. */
  machine = null;
  /** ScriptedModels; without them, the server cannot change its model. */
  models = null;
  isDown = false;
  /** The address of a server that answers in the place of scripts. */
  upstream = null;
  /** Bodies of requests for answers, newest last. */
  asked = [];
  /** What a text that goes on says, and the bodies of requests for that and for tokens. */
  completion = () => ({ text: " and so on." });
  completed = [];
  tokenized = [];
  nAlone = 1;
  /** Paths that were requested, with their hosts. */
  paths = [];
  #page;
  #server;
  #sockets = new Set();

  /** `page` is the address that the page's files come from. */
  constructor(page) {
    this.#page = new URL(page);
    this.#server = http.createServer((request, response) => this.#route(request, response));
    this.#server.on("connection", (socket) => {
      if (this.isDown) socket.destroy();
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  async start() {
    await new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.#server.address().port}/`;
  }

  stop() {
    this.cut();
    this.#server.close();
  }

  /** Ends all connections, as a server that dies does. */
  cut() {
    this.#sockets.forEach((socket) => socket.destroy());
  }

  async #route(request, response) {
    const [path] = request.url.split("?");
    this.paths.push(path);
    const isPage = path === "/" || path.startsWith("/page/");
    if (path === "/" && this.models) return this.#index(request, response);
    if (isPage || this.upstream) {
      return pass(isPage ? this.#page : new URL(this.upstream), request, response);
    }
    if (path === "/health") return send(response, this.health === "ok" ? 200 : 503, {
      status: this.health,
    });
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      return fail(response, 401, "the key is missing or wrong", "invalid_api_key");
    }
    if (this.models?.has(path)) return this.models.answer(this, request, response);
    if (this.health !== "ok") return fail(response, 503, "the model is being loaded");
    if (path === "/props") return send(response, 200, this.props);
    if (path === "/moeflux/machine" && this.machine) return this.machine.stream(response);
    if (path === "/moeflux/experts" && this.machine) {
      return send(response, 200, this.machine.experts());
    }
    const body = JSON.parse(await read(request));
    if (path === "/tokenize") return this.#tokenize(body, response);
    if (path === "/v1/chat/completions") {
      this.asked.push(body);
      return this.#stream(this.answer(body), response, body);
    }
    if (path === "/v1/completions") {
      this.completed.push(body);
      return this.#complete(this.completion(body), response, body);
    }
    return fail(response, 404, "not found");
  }

  /** The page, with what proves that it is of this start of the server. */
  async #index(request, response) {
    const page = await fetch(this.#page, { headers: { accept: request.headers.accept } });
    const empty = "name=\"moeflux-start\" content=\"";
    const text = (await page.text()).replace(new RegExp(`${empty}[^"]*`),
      empty + this.models.start);
    const headers = Object.fromEntries(page.headers);
    for (const name of ["content-length", "content-encoding", "transfer-encoding", "etag"]) {
      delete headers[name];
    }
    response.writeHead(page.status, headers);
    response.end(text);
  }

  /** A token for every four characters; a short text alone has `nAlone`. */
  #tokenize(body, response) {
    this.tokenized.push(body);
    const text = JSON.stringify(body.content ?? body.messages);
    const count = Math.ceil(text.length / 4);
    if (count > this.props.max_model_len) return tooLong(response, count);
    const isAlone = body.content?.length <= 8;
    const tokens = isAlone ? Array.from({ length: this.nAlone }, () => 900 + body.content.length)
      : Array.from({ length: count }, () => 7);
    return send(response, 200, { count, tokens });
  }

  /**
   * Plays a script: `{thoughts, text, calls, finish, pieceCharacters, pauseMs, progress, waitMs,
   * cutAfter, onClose, error, logprobs}`. `cutAfter` ends the connection behind so many pieces;
   * `logprobs` has the entries of the pieces of the text, which otherwise are made up if the body
   * asks for them.
   */
  async #stream(script, response, body) {
    if (script.error) return fail(response, script.error.status, script.error.message,
      script.error.code);
    response.writeHead(200, { "content-type": "text/event-stream" });
    this.machine?.begin();
    response.on("close", () => {
      this.machine?.end();
      script.onClose?.();
    });
    const chunk = (delta, finish = null, logprobs = null) =>
      response.write(`data: ${JSON.stringify({ model: this.props.model,
        choices: [{ index: 0, delta, logprobs, finish_reason: finish }] })}\n\n`);
    let nText = 0;
    chunk({ role: "assistant", content: "" });
    for (const progress of script.progress ?? []) {
      response.write(`data: ${JSON.stringify({ choices: [], prompt_progress: progress })}\n\n`);
      await pause(script.waitMs ?? 0);
    }
    const pieces = [...deltas("reasoning_content", script.thoughts ?? "", script),
      ...deltas("content", script.text ?? "", script), ...callDeltas(script.calls ?? [])];
    for (const [index, delta] of pieces.entries()) {
      if (response.destroyed) return undefined;
      if (index === script.cutAfter) return response.destroy();
      const isScored = body.logprobs && "content" in delta;
      chunk(delta, null, isScored ? { content: scoreOf(script, delta.content, nText) } : null);
      if ("content" in delta) nText += 1;
      this.machine?.token();
      await pause(script.pauseMs ?? 0, index);
    }
    if (body.logprobs && !script.finish && !script.calls) {
      chunk({ content: "" }, null, { content: [entry(END, -0.01)] });
    }
    chunk({}, script.finish ?? (script.calls ? "tool_calls" : "stop"));
    const usage = { prompt_tokens: 12, completion_tokens: pieces.length };
    const nThoughts = Math.ceil((script.thoughts ?? "").length / PIECE_CHARACTERS);
    usage.completion_tokens_details = { reasoning_tokens: nThoughts };
    response.write(`data: ${JSON.stringify({ choices: [], usage })}\n\n`);
    return response.end("data: [DONE]\n\n");
  }

  /** Plays a script `{text, pauseMs, cached}` in the form of Completions. */
  async #complete(script, response, body) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const chunk = (text, names, finish = null) => response.write(`data: ${JSON.stringify({
      choices: [{ index: 0, text, finish_reason: finish, logprobs: {
        tokens: names,
        token_logprobs: names.map(() => -0.2),
        top_logprobs: names.map((name) => ({ [name]: -0.2, other: -2 })),
      } }],
    })}\n\n`);
    const pieces = deltas("text", script.text, script);
    for (const [index, { text }] of pieces.entries()) {
      chunk(text, [text]);
      await pause(script.pauseMs ?? 0, index);
    }
    chunk("", [END]);
    chunk("", [], "stop");
    const usage = { prompt_tokens: body.prompt.length, completion_tokens: pieces.length,
      prompt_tokens_details: { cached_tokens: script.cached ?? 0 } };
    response.write(`data: ${JSON.stringify({ choices: [], usage })}\n\n`);
    return response.end("data: [DONE]\n\n");
  }
}

function scoreOf({ logprobs }, text, index) {
  const written = logprobs?.[index];
  if (written) return written;
  const others = [" some", " other", " thing"].map((token, rank) => entry(token, -3 - rank));
  const own = entry(text, -0.05 - (index % 4));
  return [{ ...own, top_logprobs: [own, ...others] }];
}

function entry(token, logprob) {
  return { token, logprob, bytes: [...Buffer.from(token)], top_logprobs: [] };
}

function deltas(name, text, { pieceCharacters = PIECE_CHARACTERS }) {
  const pieces = [];
  for (let at = 0; at < text.length; at += pieceCharacters) {
    pieces.push({ [name]: text.slice(at, at + pieceCharacters) });
  }
  return pieces;
}

function callDeltas(calls) {
  return calls.flatMap(({ id, name, arguments: text }, index) => [
    { tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }] },
    ...deltas("piece", text, {}).map(({ piece }) =>
      ({ tool_calls: [{ index, function: { arguments: piece } }] })),
  ]);
}

/** Without a pause, other connections are still served once in a while. */
function pause(milliseconds, index = 0) {
  if (milliseconds > 0) return new Promise((resolve) => setTimeout(resolve, milliseconds));
  return index % 50 === 0 ? new Promise((resolve) => setImmediate(resolve)) : undefined;
}

/** Lets another server answer, as if its address were that of the page. */
function pass(address, request, response) {
  const headers = { ...request.headers, host: address.host };
  delete headers.origin;
  const { hostname, port } = address;
  const options = { hostname, port, path: request.url, method: request.method, headers };
  const passed = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
    answer.on("error", () => response.destroy());
  });
  passed.on("error", () => response.destroy());
  response.on("close", () => passed.destroy());
  request.pipe(passed);
}

export async function read(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString("utf8") || "{}";
}

export function send(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
}

export function fail(response, status, message, code = null) {
  send(response, status, { error: { message, type: "x", param: null, code } });
}

function tooLong(response, count) {
  const message = `prompt is too long: ${count} tokens`;
  fail(response, 400, message, "context_length_exceeded");
}
