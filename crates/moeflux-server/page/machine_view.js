// The state of the machine as numbers, bars, lines and a map.
//
// It shows what it is given and asks for nothing. A part whose numbers the server does not know is
// left out.

import { element } from "./dom.js";
import { HeatMap } from "./heat_map.js";
import { MachineHistory, memoryParts } from "./machine_history.js";
import { Meter, StackedBar, write } from "./meters.js";
import { RateChart } from "./rate_chart.js";
import { TimeLine } from "./time_line.js";
import { tokenTimes } from "./token_times.js";
import { byteRate, count, percent, plural, size, tokenRate } from "./words.js";

const STATES = {
  loading: "The model is being loaded.",
  unloaded: "No model is loaded.",
  broken: "The model has failed. The server must be started again.",
  closed: "The server is being closed.",
};
const MEMORY_KEYS = ["resident", "experts", "step", "sessions", "rest"];
/** What streamed parts of the model are called: experts, or layers of a model without experts. */
const EXPERT_NAMES = {
  found: "Experts found in memory",
  where: "Where the experts were",
  drive: "Experts and the drive",
};
const LAYER_NAMES = {
  found: "Layers found in memory",
  where: "Where the layers were",
  drive: "Layers and the drive",
};

export class MachineView {
  element;
  /** The parts that show each layer. */
  layers;
  #timeLine = new TimeLine();
  #map = new HeatMap();
  #history = new MachineHistory();
  #trouble = element("p", { class: "hint", role: "status" });
  #now = new Meter("Now");
  #answer = new Meter("Over the answer");
  #chart = new RateChart();
  #allHere = element("p", { class: "hint" });
  #found = new Meter(EXPERT_NAMES.found, { hasBar: true });
  #wait = new Meter("Time spent waiting for the drive", { hasBar: true, className: "slow" });
  #perToken = new Meter("Read from the drive per token");
  #drive = new Meter("Drive now", { hasBar: true });
  #card = new Meter("Card", { hasBar: true, className: "tier-card" });
  #memory = new Meter("Memory", { hasBar: true, className: "tier-memory" });
  #disk = new Meter("Drive", { hasBar: true, className: "tier-drive" });
  #budget = new Meter("In use");
  #stack = new StackedBar(MEMORY_KEYS);
  #requests = new Meter("Answers");
  #sessions = new Meter("Sessions kept");
  #sessionBytes = new Meter("Memory of sessions", { hasBar: true });
  #cached = new Meter("Prompt tokens cached", { hasBar: true });
  #readParts;
  #driveTitle = element("h3", {}, EXPERT_NAMES.drive);
  #tierParts;
  #tierTitle = element("h3", {}, EXPERT_NAMES.where);
  #memoryParts;

  constructor() {
    this.#readParts = list(this.#found, this.#wait, this.#perToken, this.#drive);
    const tiers = list(this.#card, this.#memory, this.#disk);
    this.#tierParts = element("section", {}, this.#tierTitle, tiers);
    this.#memoryParts = section("Memory", list(this.#budget), this.#stack.element);
    this.layers = element("div", { class: "layers" }, this.#timeLine.element, this.#map.element);
    this.element = element("div", { class: "machine-body" }, this.#trouble,
      section("Speed", list(this.#now, this.#answer), this.#chart.element),
      element("section", {}, this.#driveTitle, this.#allHere, this.#readParts), this.#tierParts,
      this.#memoryParts, section("Answers and sessions", list(this.#requests, this.#sessions,
        this.#sessionBytes, this.#cached)), this.layers);
    this.setTrouble("Asking the server…");
  }

  push(state, isAfterGap, nowMs) {
    this.#history.push(state, nowMs, isAfterGap);
    this.setTrouble(STATES[state.state] ?? "");
    this.show(nowMs);
  }

  setExperts({ layers, last_token: lastToken }) {
    const areLayers = this.#history.newest?.experts?.are_layers === true;
    this.#timeLine.set(tokenTimes(lastToken), areLayers);
    this.#map.set(layers, areLayers);
  }

  setTrouble(text) {
    write(this.#trouble, text);
    this.#trouble.hidden = text === "";
  }

  /** Time alone changes rates: they fall when no states come. */
  show(nowMs) {
    const state = this.#history.newest;
    if (!state) return;
    const measures = this.#history.measures(nowMs);
    this.#name(state);
    this.#now.set(tokenRate(measures.tokensPerS));
    this.#answer.set(tokenRate(measures.answerTokensPerS));
    this.#chart.set(this.#history.series(nowMs));
    this.#showReads(state, measures);
    this.#showTiers(state, measures.tiers);
    this.#showMemory(state);
    this.#showSessions(state);
  }

  #name({ experts, memory }) {
    const names = experts?.are_layers ? LAYER_NAMES : EXPERT_NAMES;
    this.#found.name(names.found);
    write(this.#tierTitle, names.where);
    write(this.#driveTitle, memory?.expert_bytes === 0 ? "The drive" : names.drive);
    const what = memory?.expert_bytes === 0 ? "weights" : "experts";
    write(this.#allHere, `All ${what} are in memory.`);
  }

  #showReads({ experts, measured, state }, measures) {
    this.#allHere.hidden = experts !== null || state !== "ready";
    this.#readParts.hidden = experts === null;
    if (!experts) return;
    const { foundShare, waitShare, bytesPerToken, driveBytesPerS } = measures;
    this.#found.set(percent(foundShare), { share: foundShare ?? 0 });
    this.#wait.set(percent(waitShare), { share: waitShare ?? 0 });
    this.#perToken.set(bytesPerToken === null ? "–" : size(Math.round(bytesPerToken)));
    const measuredRate = measured?.drive_bytes_per_s ?? null;
    this.#drive.set(byteRate(driveBytesPerS), {
      share: measuredRate && (driveBytesPerS ?? 0) / measuredRate,
      note: measuredRate ? `of ${byteRate(measuredRate)} measured`
        : "moeflux doctor measures what it can do",
    });
  }

  #showTiers({ tiers, experts }, shares) {
    this.#tierParts.hidden = tiers === null && experts === null;
    const hasCard = tiers !== null || (experts?.device_hits ?? 0) > 0;
    this.#card.element.hidden = !hasCard;
    this.#disk.element.hidden = experts === null;
    const onCard = tiers && `holds ${size(tiers.near_bytes)}`;
    this.#card.set(...tier(shares?.card ?? null, onCard));
    const held = experts
      ? `room for ${count(experts.n_slots)} of ${
        plural(experts.n_experts, experts.are_layers ? "layer" : "expert")}`
      : tiers && `holds ${size(tiers.far_bytes)}`;
    this.#memory.set(...tier(shares?.memory ?? null, held));
    this.#disk.set(...tier(shares?.drive ?? null, experts?.drive));
  }

  #showMemory(state) {
    const memory = memoryParts(state);
    this.#memoryParts.hidden = memory === null;
    if (!memory) return;
    const { parts, used, budget, whole } = memory;
    const note = used > budget ? "more than the budget" : "";
    this.#budget.set(`${size(used)} of ${size(budget)}`, { note });
    this.#stack.set(parts.map(({ nBytes, ...part }) =>
      ({ ...part, share: whole > 0 ? nBytes / whole : 0, text: size(nBytes) })));
  }

  #showSessions({ requests, sessions, tokens }) {
    const { running, waiting, parked } = requests;
    const note = parked > 0 ? `${count(parked)} whose reader has paused` : "";
    this.#requests.set(`${count(running)} running, ${count(waiting)} waiting`, { note });
    this.#sessions.set(`${count(sessions.kept)} with ${size(sessions.kept_bytes)}`);
    const limit = sessions.bytes_limit;
    this.#sessionBytes.set(`${size(sessions.bytes)}${limit ? ` of ${size(limit)}` : ""}`,
      { share: limit ? sessions.bytes / limit : null, note: limit ? "" : "no limit of its own" });
    const share = tokens.prompt > 0 ? tokens.cached / tokens.prompt : null;
    this.#cached.set(`${count(tokens.cached)} of ${count(tokens.prompt)}`, { share });
  }
}

function tier(share, note) {
  return [percent(share), { share: share ?? 0, note: note ?? "" }];
}

function list(...meters) {
  return element("dl", {}, ...meters.map((it) => it.element));
}

function section(title, ...children) {
  return element("section", {}, element("h3", {}, title), ...children);
}
