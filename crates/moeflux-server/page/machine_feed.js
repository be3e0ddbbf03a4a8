// Receives the state of the machine and the uses of experts while somebody looks at them.
//
// Invariant: between `close` and `open` nothing is asked and no connection is open. A connection
// that ends is opened again; the first state after it is told to be behind a gap.

const RETRY_MS = 2_000;
const EXPERTS_MS = 1_000;

export class MachineFeed {
  #server;
  #onState;
  #onExperts;
  #onTrouble;
  #abort = null;
  #timer = 0;
  #areLayersSeen = false;
  #asking = null;
  #nLayers = 0;
  #served = "";

  /**
   * `onState(state, isAfterGap)`, `onExperts(experts)` and `onTrouble(error)` get what comes. An
   * error of the kind "missing" is the last: the server is older than this view.
   */
  constructor({ server, onState, onExperts, onTrouble }) {
    this.#server = server;
    this.#onState = onState;
    this.#onExperts = onExperts;
    this.#onTrouble = onTrouble;
  }

  open() {
    if (this.#abort) return;
    this.#abort = new AbortController();
    this.#served = "";
    this.#run(this.#abort.signal);
  }

  close() {
    this.#abort?.abort();
    this.#abort = null;
    clearTimeout(this.#timer);
  }

  /** Whether the layers are on the screen: only then their numbers are asked for again. */
  setLayersSeen(isSeen) {
    this.#areLayersSeen = isSeen;
    if (isSeen && this.#abort && this.#nLayers > 0) this.#askExperts(this.#abort.signal);
  }

  async #run(signal) {
    while (!signal.aborted) {
      let isAfterGap = true;
      try {
        for await (const state of this.#server.machine(signal)) {
          if (signal.aborted) return;
          this.#onState(state, isAfterGap);
          isAfterGap = false;
          this.#askIfOther(state, signal);
        }
      } catch (error) {
        if (signal.aborted) return;
        this.#onTrouble(error);
        if (error.kind === "missing" || error.kind === "key") return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  /** Another model, or one that was just loaded, has other layers. */
  #askIfOther({ model, state }, signal) {
    const served = `${state} ${model}`;
    if (served === this.#served) return;
    this.#served = served;
    this.#askExperts(signal);
  }

  async #askExperts(signal) {
    clearTimeout(this.#timer);
    if (this.#asking === signal) return;
    this.#asking = signal;
    try {
      const experts = await this.#server.experts(signal);
      this.#nLayers = experts.layers.length;
      if (!signal.aborted) this.#onExperts(experts);
    } catch {
      // The view keeps what it has; the stream tells of a server that is gone.
    }
    if (this.#asking === signal) this.#asking = null;
    const goesOn = !signal.aborted && this.#nLayers > 0 && this.#areLayersSeen;
    if (goesOn) this.#timer = setTimeout(() => this.#askExperts(signal), EXPERTS_MS);
  }
}
