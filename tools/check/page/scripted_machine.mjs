// A machine for the scripted server: its counters move with each token that is streamed.
const N_LAYERS = 24;
const N_EXPERTS = 64;
const N_USED = 6;
const SLOT_BYTES = 9_400_000;
const EVENT_MS = 250;

export class ScriptedMachine {
  /** The state that is sent; checks may change it. */
  state = {
    time_ms: 0,
    model: "scripted-model",
    state: "ready",
    requests: { running: 0, waiting: 0, parked: 0 },
    tokens: { prompt: 0, cached: 0, answer: 0, forced: 0 },
    steps: 0,
    sessions: { kept: 0, kept_bytes: 0, bytes: 0, bytes_limit: 2e9 },
    memory: {
      budget_bytes: 24e9,
      resident_bytes: 4.1e9,
      expert_bytes: 11.2e9,
      step_bytes: 0.9e9,
      process_bytes: 17.4e9,
    },
    experts: {
      n_experts: N_LAYERS * N_EXPERTS, n_slots: 900, slot_bytes: SLOT_BYTES, hits: 0,
      device_hits: 0, on_the_way: 0, misses: 0, guesses: 0, guesses_used: 0, demand_bytes: 0,
      guess_bytes: 0, read_wait_s: 0, read_busy_s: 0, drive: "io_uring",
    },
    tiers: { near_bytes: 6e9, far_bytes: 11.2e9, near_uses: 0, uses: 0, swaps: 0 },
    measured: { drive_bytes_per_s: 2.1e9, memory_bytes_per_s: 40e9 },
  };
  layers = Array.from({ length: N_LAYERS }, (_, layer) => ({
    layer,
    uses: new Array(N_EXPERTS).fill(0),
    in_memory: Array.from({ length: N_EXPERTS }, (_, expert) => (expert * 7 + layer) % 12 < 7),
  }));
  /** The times of the last token, null before the first. */
  lastToken = null;
  /** Streams that are open now, and how often the experts were asked for. */
  nStreams = 0;
  nExpertsAsked = 0;
  #began = Date.now();
  #streams = new Set();

  begin() {
    this.state.requests.running += 1;
    this.state.tokens.prompt += 400;
    this.state.tokens.cached += 300;
  }

  token() {
    const { state } = this;
    state.tokens.answer += 1;
    state.steps += 1;
    for (const { layer, uses, in_memory: inMemory } of this.layers) {
      for (let rank = 0; rank < N_USED; rank += 1) {
        const draw = (state.tokens.answer * 37 + layer * 11 + rank * 53) % 97;
        const expert = Math.floor((draw / 97) ** 2 * N_EXPERTS);
        uses[expert] += 1;
        this.#use(inMemory[expert], rank);
      }
    }
    this.lastToken = lastToken(state.tokens.answer);
    state.experts.read_wait_s += this.lastToken.layers.reduce((sum, it) => sum + it.wait_s, 0);
    state.sessions.bytes += 1e6;
  }

  #use(isInMemory, rank) {
    const { experts, tiers } = this.state;
    tiers.uses += 1;
    if (isInMemory) experts.hits += 1;
    else if (rank > 3) {
      experts.misses += 1;
      experts.demand_bytes += SLOT_BYTES / 8;
    } else experts.hits += 1;
    if (isInMemory && rank < 2) {
      experts.device_hits += 1;
      tiers.near_uses += 1;
    }
  }

  end() {
    this.state.requests.running -= 1;
    this.state.sessions.kept += 1;
    this.state.sessions.kept_bytes = this.state.sessions.bytes;
  }

  stream(response) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    this.nStreams += 1;
    let sent = "";
    const send = () => {
      const text = JSON.stringify({ ...this.state, time_ms: 0 });
      if (text === sent) return;
      sent = text;
      const state = { ...this.state, time_ms: Date.now() - this.#began };
      response.write(`event: machine\ndata: ${JSON.stringify(state)}\n\n`);
    };
    send();
    const timer = setInterval(send, EVENT_MS);
    this.#streams.add(response);
    response.on("close", () => {
      clearInterval(timer);
      this.#streams.delete(response);
      this.nStreams -= 1;
    });
  }

  /** Ends the streams, as a lost connection does. */
  cut() {
    this.#streams.forEach((response) => response.destroy());
  }

  experts() {
    this.nExpertsAsked += 1;
    return { layers: this.layers, last_token: this.lastToken };
  }
}

/** Layers that take 0.2 ms to compute, and 0.4 ms more for each expert that is read. */
function lastToken(nTokens) {
  const layers = Array.from({ length: N_LAYERS }, (_, layer) => {
    const draw = (nTokens * 29 + layer * 41) % 37;
    const read = draw < 22 ? 0 : draw < 32 ? 1 : draw < 36 ? 2 : 3;
    const wait = 0.0004 * read;
    return { layer, seconds: 0.0002 + wait, wait_s: wait, found: N_USED - read, read };
  });
  return { seconds: layers.reduce((sum, it) => sum + it.seconds, 0), layers };
}
