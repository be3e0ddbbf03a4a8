// Turns states of the machine, which have totals, into rates and shares.
//
// The server sends a state only if something has changed, so a counter stays as it is until just
// before the next state. Times are those of the server; the page's clock only says how much time
// has passed since the newest state. Invariant: every rate is finite and not negative, and what is
// not known is null.

const KEPT_MS = 130_000;
const SHOWN_MS = 120_000;
const POINT_MS = 1_000;
/** Rates of now are of this time. */
const NOW_MS = 1_500;
/** Shares are of this time, because experts come in bursts. */
const SHARE_MS = 5_000;
// The server sends at most four states a second; a change is spread over the time before it.
const BETWEEN_MS = 250;
// A state that is a little late is not yet silence.
const LATE_MS = 500;
// A rate of less time would be noise.
const LEAST_MS = 200;

const nAnswer = (state) => state.tokens.answer;
const nRead = (state) => (state.experts ? readBytes(state.experts) : 0);
const nUsed = ({ tokens, steps }) => tokens.answer + tokens.prompt + steps;

export class MachineHistory {
  #samples = [];
  #arrivedMs = 0;
  #activity = null;
  #answer = null;

  get newest() {
    return this.#samples.at(-1)?.state ?? null;
  }

  /** `isAfterGap` says that states before this one were not received. */
  push(state, nowMs, isAfterGap = false) {
    const before = this.newest;
    if (before && isOther(before, state)) this.#forget();
    const previous = this.#samples.at(-1) ?? null;
    const sample = { atMs: state.time_ms, state, isAfterGap };
    this.#samples.push(sample);
    this.#arrivedMs = nowMs;
    const first = this.#samples.findIndex(({ atMs }) => atMs >= state.time_ms - KEPT_MS);
    this.#samples.splice(0, Math.max(0, first - 1));
    if (!previous) return;
    this.#activity = span(this.#activity, previous, sample, nUsed);
    this.#answer = span(this.#answer, previous, sample, nAnswer);
  }

  /** What a person wants to know of now and of the last seconds. */
  measures(nowMs) {
    const to = this.#timeAt(nowMs);
    const recent = this.#recent();
    return {
      tokensPerS: this.#rate(nAnswer, to - NOW_MS, to),
      answerTokensPerS: this.#answerRate(),
      driveBytesPerS: this.newest?.experts ? this.#rate(nRead, to - NOW_MS, to) : null,
      foundShare: recent && share(recent, ({ experts: it }) => it?.hits, nLookedUp),
      bytesPerToken: recent && share(recent, ({ experts: it }) => it && readBytes(it), nAnswer),
      waitShare: recent && waitShare(recent),
      tiers: recent && tierShares(recent),
    };
  }

  /** Tokens per second in the last two minutes, oldest first; null where nothing was received. */
  series(nowMs) {
    const end = this.#timeAt(nowMs);
    const points = [];
    for (let before = SHOWN_MS; before >= 0; before -= POINT_MS) {
      points.push(this.#rate(nAnswer, end - before - NOW_MS, end - before));
    }
    return points;
  }

  #forget() {
    this.#samples = [];
    this.#activity = null;
    this.#answer = null;
  }

  #timeAt(nowMs) {
    const silentMs = Math.max(0, nowMs - this.#arrivedMs - LATE_MS);
    return (this.#samples.at(-1)?.atMs ?? 0) + silentMs;
  }

  #rate(counter, fromMs, toMs) {
    if (this.#samples.length === 0) return null;
    const from = Math.max(fromMs, this.#samples[0].atMs);
    if (toMs - from < LEAST_MS) return null;
    return ((this.#at(counter, toMs) - this.#at(counter, from)) * 1000) / (toMs - from);
  }

  #answerRate() {
    if (!this.#answer) return null;
    const { from, to, fromMs } = this.#answer;
    const seconds = (to.atMs - fromMs) / 1000;
    return seconds * 1000 < LEAST_MS ? null : (nAnswer(to.state) - nAnswer(from.state)) / seconds;
  }

  /** The value of a counter at a time that is not before the first state. */
  #at(counter, atMs) {
    const index = lastAtOrBefore(this.#samples, atMs);
    const [before, after] = [this.#samples[index], this.#samples[index + 1]];
    const value = counter(before.state);
    if (!after) return value;
    const from = changeStart(before, after);
    const part = Math.max(0, (atMs - from) / (after.atMs - from));
    return value + part * (counter(after.state) - value);
  }

  /** The states around the last seconds in which the engine computed, or null. */
  #recent() {
    if (!this.#activity) return null;
    const { from, to, fromMs } = this.#activity;
    const startMs = to.atMs - SHARE_MS;
    if (startMs <= fromMs) return { from: from.state, to: to.state, ms: to.atMs - fromMs };
    const start = this.#samples[lastAtOrBefore(this.#samples, startMs)];
    return { from: start.state, to: to.state, ms: to.atMs - start.atMs };
  }
}

/** Whether the server or its model was started anew. */
function isOther(before, state) {
  return state.model !== before.model || state.time_ms < before.time_ms
    || nAnswer(state) < nAnswer(before) || nRead(state) < nRead(before)
    || (state.experts === null) !== (before.experts === null);
}

/** The time from the beginning of an activity to its newest state, with this state added. */
function span(known, previous, sample, counter) {
  const isOver = sample.state.requests.running === 0;
  const grew = counter(sample.state) > counter(previous.state);
  if (!grew) return known && { ...known, isOver: known.isOver || isOver };
  if (known && !known.isOver) return { ...known, to: sample, isOver };
  const fromMs = changeStart(previous, sample);
  return { from: previous, fromMs, to: sample, isOver };
}

function changeStart(before, after) {
  return after.isAfterGap ? before.atMs : Math.max(before.atMs, after.atMs - BETWEEN_MS);
}

function lastAtOrBefore(samples, atMs) {
  let [low, high] = [0, samples.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (samples[middle].atMs <= atMs) low = middle;
    else high = middle - 1;
  }
  return low;
}

function readBytes(experts) {
  return experts.demand_bytes + experts.guess_bytes;
}

function nLookedUp({ experts: it }) {
  return it && it.hits + it.on_the_way + it.misses;
}

function share({ from, to }, part, all) {
  const nAll = all(to) - all(from);
  const nPart = part(to) - part(from);
  return nAll > 0 && Number.isFinite(nPart) ? Math.max(0, nPart) / nAll : null;
}

function waitShare({ from, to, ms }) {
  if (!to.experts || ms < LEAST_MS) return null;
  const waitedMs = (to.experts.read_wait_s - from.experts.read_wait_s) * 1000;
  return Math.min(1, Math.max(0, waitedMs / ms));
}

/** Where the experts were that were used: shares of card, memory and drive. */
function tierShares(recent) {
  const { tiers, experts } = recent.to;
  if (experts) {
    const card = share(recent, ({ experts: it }) => it.device_hits, nLookedUp);
    const found = share(recent, ({ experts: it }) => it.hits, nLookedUp);
    return found === null ? null : { card, memory: found - card, drive: 1 - found };
  }
  if (!tiers || !recent.from.tiers) return null;
  const card = share(recent, ({ tiers: it }) => it.near_uses, ({ tiers: it }) => it.uses);
  return card === null ? null : { card, memory: 1 - card, drive: 0 };
}

/** The uses of memory, in bytes, and the budget; null while no model is loaded. */
export function memoryParts({ memory, sessions, experts }) {
  if (!memory) return null;
  const streamed = experts?.are_layers ? "Layers" : "Experts";
  const known = [
    { key: "resident", label: "Weights that every token uses", nBytes: memory.resident_bytes },
    { key: "experts", label: streamed, nBytes: memory.expert_bytes },
    { key: "step", label: "Work space of a step", nBytes: memory.step_bytes },
    { key: "sessions", label: "Sessions", nBytes: sessions.bytes },
  ];
  const nKnown = known.reduce((sum, { nBytes }) => sum + nBytes, 0);
  const nRest = Math.max(0, (memory.process_bytes ?? 0) - nKnown);
  const parts = [...known, { key: "rest", label: "Rest of the process", nBytes: nRest }];
  const used = nKnown + nRest;
  return { parts, used, budget: memory.budget_bytes, whole: Math.max(used, memory.budget_bytes) };
}
