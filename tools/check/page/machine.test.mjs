// The parts of the machine view that turn numbers into numbers and texts: node --test.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page";
const load = (name) => import(`${PAGE}/${name}.js`);
const { MachineHistory, memoryParts } = await load("machine_history");
const heat = await load("heat");
const token = await load("token_times");
const words = await load("words");

const NO_EXPERTS = {
  hits: 0, device_hits: 0, on_the_way: 0, misses: 0, demand_bytes: 0, guess_bytes: 0,
  read_wait_s: 0,
};

function state(time_ms, answer, { running = 1, experts = {}, ...rest } = {}) {
  return {
    time_ms,
    model: "m",
    requests: { running, waiting: 0, parked: 0 },
    tokens: { prompt: 10, cached: 0, answer, forced: 0 },
    steps: answer,
    experts: experts && { ...NO_EXPERTS, ...experts },
    tiers: null,
    ...rest,
  };
}

/** A history with 10 tokens/s for `seconds`, a state each quarter of a second. */
function steady(seconds, experts = () => ({})) {
  const history = new MachineHistory();
  history.push(state(0, 0, { running: 0 }), 1000);
  for (let at = 250; at <= seconds * 1000; at += 250) {
    history.push(state(at, at / 100, { experts: experts(at / 100) }), 1000 + at);
  }
  return history;
}

const near = (found, wanted) => assert.ok(Math.abs(found - wanted) < 0.01 * wanted + 1e-9,
  `${found}, wanted ${wanted}`);

test("nothing is known before the first state, and little after it", () => {
  const history = new MachineHistory();
  assert.equal(history.newest, null);
  assert.ok(history.series(0).every((it) => it === null));
  history.push(state(5000, 7), 0);
  const measures = history.measures(10);
  assert.deepEqual(new Set(Object.values(measures)), new Set([null]));
});

test("rates are those of the last seconds, and fall when nothing comes", () => {
  const history = steady(10);
  near(history.measures(11_000).tokensPerS, 10);
  near(history.measures(11_000).answerTokensPerS, 10);
  near(history.measures(12_250).tokensPerS, 5);
  assert.equal(history.measures(20_000).tokensPerS, 0);
  near(history.measures(20_000).answerTokensPerS, 10);
  const series = history.series(11_000);
  assert.equal(series.length, 121);
  near(series.at(-1), 10);
  near(series.at(-5), 10);
  assert.equal(series[0], null);
});

test("a pause before an answer does not count, and the next answer begins anew", () => {
  const history = steady(4);
  history.push(state(4250, 40, { running: 0 }), 5250);
  history.push(state(60_000, 40), 61_000);
  history.push(state(60_250, 45), 61_250);
  history.push(state(60_500, 50), 61_500);
  near(history.measures(61_500).answerTokensPerS, 20);
  history.push(state(60_750, 50, { running: 0 }), 61_750);
  near(history.measures(90_000).answerTokensPerS, 20);
});

test("what came while nobody listened is spread over that time", () => {
  const history = new MachineHistory();
  history.push(state(0, 0), 0);
  history.push(state(20_000, 200), 20_000, true);
  near(history.measures(20_000).tokensPerS, 10);
  near(history.series(20_000).at(-10), 10);
});

test("shares are of the last five seconds of computing, also after it ended", () => {
  const history = steady(20, (n) => ({
    hits: n < 100 ? 0 : (n - 100) * 6,
    device_hits: n < 100 ? 0 : (n - 100) * 2,
    on_the_way: n,
    misses: n,
    demand_bytes: n * 3e6,
    guess_bytes: n * 1e6,
    read_wait_s: n * 0.02,
  }));
  for (const nowMs of [21_000, 80_000]) {
    const measures = history.measures(nowMs);
    near(measures.foundShare, 0.75);
    near(measures.bytesPerToken, 4e6);
    near(measures.waitShare, 0.2);
    near(measures.tiers.card, 0.25);
    near(measures.tiers.memory, 0.5);
    near(measures.tiers.drive, 0.25);
  }
  near(history.measures(21_000).driveBytesPerS, 4e7);
  assert.equal(history.measures(80_000).driveBytesPerS, 0);
});

test("without a drive, a card and memory share the experts", () => {
  const history = new MachineHistory();
  const tiers = (near_uses, uses) => ({ near_uses, uses });
  history.push(state(0, 0, { experts: null, tiers: tiers(0, 0) }), 0);
  history.push(state(250, 5, { experts: null, tiers: tiers(30, 40) }), 250);
  assert.deepEqual(history.measures(250).tiers, { card: 0.75, memory: 0.25, drive: 0 });
  assert.equal(history.measures(250).driveBytesPerS, null);
  assert.equal(history.measures(250).foundShare, null);
});

test("another server or model begins anew, and old states are dropped", () => {
  const history = steady(5);
  history.push(state(100, 0), 7000);
  assert.equal(history.measures(7000).tokensPerS, null);
  history.push(state(400, 3), 7300);
  near(history.measures(7300).answerTokensPerS, 12);
  const long = steady(600);
  near(long.series(601_000)[0], 10);
  near(long.measures(601_000).answerTokensPerS, 10);
});

test("memory has its parts, the rest of the process, and a budget", () => {
  const memory = {
    budget_bytes: 100, resident_bytes: 30, expert_bytes: 20, step_bytes: 5, process_bytes: 70,
  };
  const found = memoryParts({ memory, sessions: { bytes: 5 } });
  assert.deepEqual(found.parts.map(({ nBytes }) => nBytes), [30, 20, 5, 5, 10]);
  assert.deepEqual([found.used, found.budget, found.whole], [70, 100, 100]);
  const over = memoryParts({ memory: { ...memory, process_bytes: null, budget_bytes: 50 },
    sessions: { bytes: 5 } });
  assert.deepEqual([over.used, over.budget, over.whole], [60, 50, 60]);
  assert.equal(memoryParts({ memory: null, sessions: { bytes: 0 } }), null);
  const labels = (experts) => memoryParts({ memory, sessions: { bytes: 5 }, experts }).parts
    .map(({ label }) => label);
  assert.equal(labels(null)[1], "Experts");
  assert.equal(labels({ are_layers: false })[1], "Experts");
  assert.equal(labels({ are_layers: true })[1], "Layers");
});

test("sizes, rates and shares read well", () => {
  assert.equal(words.size(999_940_000), "999.9 MB");
  assert.equal(words.size(999_960_000), "1.0 GB");
  assert.equal(words.size(24e9), "24.0 GB");
  assert.equal(words.byteRate(2.1e9), "2.1 GB/s");
  assert.equal(words.byteRate(0.4), "0 bytes/s");
  assert.equal(words.byteRate(null), "–");
  assert.equal(words.tokenRate(0), "0.0 tokens/s");
  assert.equal(words.tokenRate(99.94), "99.9 tokens/s");
  assert.equal(words.tokenRate(1234.4), "1,234 tokens/s");
  const shares = [null, 0, 0.001, 0.5, 0.999, 1];
  assert.deepEqual(shares.map(words.percent),
    ["–", "0 %", "under 1 %", "50 %", "over 99 %", "100 %"]);
});

test("a map of layers does not speak of experts", () => {
  const counts = { nLayers: 4, nExperts: 4 };
  const { experts, layers } = heat.HEAT_WORDS;
  assert.equal(experts.all({ nLayers: 1, nExperts: 64 }),
    "1 layer from top to bottom, with 64 experts");
  assert.equal(experts.place(3, 7), "Layer 3, expert 7");
  assert.deepEqual([layers.all(counts), layers.place(3, 0)],
    ["4 layers from top to bottom", "Layer 3"]);
  assert.ok(![layers.title, layers.label, layers.hint].some((it) => /expert/i.test(it)));
});

test("used experts are brighter, and those in memory are never dark", () => {
  const { brightness } = heat;
  assert.equal(brightness(0, 100, false), 0);
  assert.ok(brightness(0, 100, true) > 0);
  assert.ok(brightness(1, 100, false) > brightness(0, 100, true));
  assert.ok(brightness(50, 100, true) > brightness(5, 100, true));
  assert.equal(brightness(100, 100, false), 1);
  assert.deepEqual(heat.readColour("rgb(1, 2.5, 30)"), [1, 2.5, 30]);
  assert.deepEqual(heat.readColour("none"), [128, 128, 128]);
  assert.equal(heat.mix([0, 100, 200], [100, 0, 200], 0.25), "rgb(25 75 200)");
});

test("places in a map are found by point and by keys, and stay in it", () => {
  const layer = (n) => ({ uses: new Array(n).fill(1), in_memory: new Array(n).fill(true) });
  const layers = [layer(4), layer(2)];
  assert.deepEqual(heat.placeAt(layers, 0.99, 0.2), { row: 0, column: 3 });
  assert.equal(heat.placeAt(layers, 0.99, 0.7), null);
  assert.equal(heat.placeAt(layers, 1, 0), null);
  const at = { row: 0, column: 3 };
  assert.deepEqual(heat.moved(layers, at, "ArrowLeft"), { row: 0, column: 2 });
  assert.deepEqual(heat.moved(layers, at, "ArrowRight"), at);
  assert.deepEqual(heat.moved(layers, at, "ArrowDown"), at);
  assert.deepEqual(heat.moved(layers, { row: 1, column: 0 }, "End"), { row: 1, column: 1 });
  assert.equal(heat.moved(layers, at, "a"), null);
  for (const n of [1, 8, 128, 384, 4000]) {
    for (const [width, scale] of [[341, 1], [682, 2], [0, 1]]) {
      const sizes = heat.layout([layer(n), layer(1)], width, scale);
      const [x, y, across, down] = heat.cell(sizes, { row: 0, column: n - 1 });
      assert.ok(x >= 0 && y === 0 && across >= 1 && down >= 2, `${[x, y, across, down]}`);
      if (width >= n) assert.ok(x + across + sizes.gap === width);
      assert.equal(heat.cell(sizes, { row: 1, column: 0 })[1], sizes.rowHeight);
    }
  }
});

test("a map is told in words", () => {
  const layers = [
    { layer: 3, uses: [90, 0, 0, 0, 0], in_memory: [true, true, false, false, false] },
    { layer: 4, uses: [5, 5, 0, 0, 0], in_memory: [true, false, false, false, false] },
  ];
  assert.deepEqual(heat.summary(layers),
    { nLayers: 2, nExperts: 10, nInMemory: 3, nUsed: 3, tenthShare: 0.9 });
  assert.equal(heat.usesMax(layers), 90);
  assert.equal(heat.summary([{ uses: [0], in_memory: [false] }]).tenthShare, null);
});

function layer(number, ms, waitMs, read = 0) {
  return { layer: number, seconds: ms / 1000, wait_s: waitMs / 1000, found: 8 - read, read };
}

test("the time of a token has parts that are the whole", () => {
  const layers = [layer(3, 2, 1.5, 1), layer(4, 0, 0), layer(5, 6, 0), layer(6, 2, 9, 3)];
  const times = token.tokenTimes({ seconds: 0.01, layers });
  near(times.seconds, 0.01);
  near(times.waitS, 0.0035);
  assert.equal(times.slowest.layer, 5);
  const ends = times.parts.map(({ start, computeShare, waitShare }) =>
    start + computeShare + waitShare);
  times.parts.slice(1).forEach(({ start }, index) => near(start, ends[index]));
  near(ends.at(-1), 1);
  assert.equal(token.tokenSentence(times),
    "Last token: 10.0 ms, 3.5 ms of it waiting for the drive; slowest: layer 5, 6.0 ms.");
  assert.deepEqual([0, 1, 3].map((index) => token.partSentence(times.parts[index])), [
    "Layer 3: 2.0 ms, 1.5 ms of it waiting; 7 experts in memory, 1 read.",
    "Layer 4: 0.000 ms, without waiting; 8 experts in memory, 0 read.",
    "Layer 6: 2.0 ms, 2.0 ms of it waiting; 5 experts in memory, 3 read.",
  ]);
  assert.match(token.tokenSentence(token.tokenTimes({ layers: [layer(0, 1, 0)] })), /, none of it/);
  assert.deepEqual([0, 1].map((index) => token.partSentence(times.parts[index], true)), [
    "Layer 3: 2.0 ms, 1.5 ms of it waiting; read from the drive.",
    "Layer 4: 0.000 ms, without waiting; in memory.",
  ]);
});

test("there is no time of a token where the server tells none", () => {
  const nothing = [undefined, null, { seconds: 0, layers: [] }, { layers: [layer(0, 0, 0)] },
    { layers: [layer(0, NaN, 1), layer(1, -1, 0)] }];
  for (const it of nothing) assert.equal(token.tokenTimes(it), null);
});

test("a layer of a token is found by point and by keys", () => {
  const layers = [layer(0, 1, 0), layer(1, 0, 0), layer(2, 3, 0)];
  const times = token.tokenTimes({ layers });
  assert.deepEqual([-0.1, 0, 0.24, 0.25, 0.999, 1, NaN].map((it) => token.partAt(times, it)),
    [null, 0, 0, 2, 2, null, null]);
  const from = (index, key) => token.movedPart(times, index, key);
  assert.deepEqual([from(0, "ArrowLeft"), from(0, "ArrowRight"), from(2, "ArrowRight")], [0, 1, 2]);
  assert.deepEqual([from(1, "Home"), from(1, "End"), from(0, "PageDown")], [0, 2, 2]);
  assert.deepEqual([from(1, "ArrowUp"), from(1, "a")], [null, null]);
});

test("a scale has round steps within the time", () => {
  const texts = (seconds) => token.ticks(seconds).map(({ text }) => text);
  assert.deepEqual(texts(0.0123), ["0 ms", "5 ms", "10 ms"]);
  assert.deepEqual(texts(0.01), ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms"]);
  assert.deepEqual(texts(2.4), ["0 ms", "500 ms", "1 s", "1.5 s", "2 s"]);
  assert.deepEqual(texts(0.0009), ["0 ms", "0.2 ms", "0.4 ms", "0.6 ms", "0.8 ms"]);
  for (let seconds = 1e-6; seconds < 1000; seconds *= 1.37) {
    const found = token.ticks(seconds);
    assert.ok(found.length >= 2 && found.length <= 6, `${seconds}: ${found.length}`);
    assert.ok(found.every(({ share }) => share >= 0 && share <= 1));
  }
});

test("short times have three digits or fewer", () => {
  const times = [0, 0.0000042, 0.00042, 0.00999, 0.0999, 0.09996, 0.9994, 0.9996, 12.34];
  assert.deepEqual(times.map(words.shortTime), ["0.000 ms", "0.004 ms", "0.42 ms", "10.0 ms",
    "99.9 ms", "100 ms", "999 ms", "1.0 s", "12 s"]);
});
