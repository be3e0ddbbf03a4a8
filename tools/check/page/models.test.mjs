// What the page says of models, offers and tasks, without a browser: node --test.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../crates/moeflux-server/page";
const load = (name) => import(`${PAGE}/${name}.js`);
const list = await load("model_list");
const tasks = await load("tasks");
const { size, sizes } = await load("words");
const { ModelManager } = await load("model_manager");

const PLAN = {
  fits: true, in_memory: 0.34, drive_bytes_per_token: [1.2e8, 4.5e8], bound: "drive",
  answer_tokens_per_s: [3.1, 7.9],
};
const MODEL = {
  id: "a", name: "Qwen3-30B-A3B", size: "30B-A3B", place: "hub", repository: "mlx/Qwen3",
  stored: "4 bit", download_bytes: 17.2e9, here_bytes: 0, plan: PLAN, problem: null,
  can: ["pull", "load", "remove"],
};
const TASK = {
  id: 7, kind: "pull", model: "a", name: "Qwen3", state: "running", phase: "downloading",
  done_bytes: 3.1e9, total_bytes: 17.2e9, bytes_per_s: 1e7, seconds: 300, n_answers: null,
  message: null,
};

test("two sizes share the unit of the second", () => {
  assert.equal(sizes(3.1e9, 17.2e9, " of "), "3.1 of 17.2 GB");
  assert.equal(sizes(0, 17.2e9, " of "), "0.0 of 17.2 GB");
  assert.equal(sizes(1.2e8, 4.5e8, "–"), "120–450 MB");
  assert.equal(sizes(4e8, 1.5e9, "–"), "0.4–1.5 GB");
  assert.equal(sizes(100, 900, " of "), "0.1 of 0.9 kB");
  assert.equal(sizes(999_960, 999_960, "–"), "1.0–1.0 MB");
  assert.equal(size(688e9), "688 GB");
});

test("groups keep the order of the server", () => {
  const named = (id, more) => ({ ...MODEL, id, ...more });
  const groups = list.groupsOf([named("a", {}), named("b", { plan: { fits: false } }),
    named("c", { problem: "no", plan: null }), named("d", { plan: null }), named("e", {})]);
  assert.deepEqual(groups.map(({ key, models }) => [key, models.map(({ id }) => id).join()]),
    [["fits", "a,e"], ["large", "b"], ["unsupported", "c"], ["unknown", "d"]]);
  assert.deepEqual(list.groupsOf([]), []);
});

test("a filter finds words anywhere in a row", () => {
  for (const filter of ["", "qwen", "QWEN 4", "mlx a3b"]) {
    assert.equal(list.isFound(MODEL, filter), true, filter);
  }
  assert.equal(list.isFound(MODEL, "qwen glm"), false);
  assert.equal(list.isFound({ ...MODEL, size: null, stored: null, repository: null }, "null"),
    false);
});

test("a row says what a model is, and where", () => {
  assert.equal(list.kindOf(MODEL), "4 bit");
  assert.equal(list.kindOf({ ...MODEL, name: "Large" }), "30B-A3B · 4 bit");
  assert.equal(list.kindOf({ ...MODEL, size: null, stored: null }), "");
  const place = (more) => list.placeOf({ ...MODEL, ...more });
  assert.equal(place({}), "Download of 17.2 GB");
  assert.equal(place({ download_bytes: null }), "Not downloaded");
  assert.equal(place({ place: "partial", here_bytes: 5e9 }), "Partly downloaded, 5.0 of 17.2 GB");
  assert.equal(place({ place: "here", here_bytes: 17.2e9 }), "Here, 17.2 GB");
});

test("a plan is said in plain words", () => {
  assert.equal(list.rates([3.1, 7.9]), "3.1–7.9");
  assert.equal(list.rates([9.96, 21.8]), "10–22");
  assert.equal(list.rates([3.12, 3.14]), "3.1");
  assert.equal(list.rates([4154.2, 12461.9]), "4,154–12,462");
  assert.equal(list.rates([0.01, 0.4]), "up to 0.4");
  assert.equal(list.rates([0.01, 0.02]), "under 0.1");
  assert.equal(list.rates(null), null);
  assert.deepEqual(list.planFacts(PLAN), ["Limited by the drive", "34 % of the experts in memory",
    "120–450 MB from the drive per token"]);
  const whole = { ...PLAN, in_memory: 1, drive_bytes_per_token: [0, 0], bound: "CPU" };
  assert.deepEqual(list.planFacts(whole), ["Limited by the processor", "all experts in memory"]);
  assert.deepEqual(list.planFacts({ ...whole, is_dense: true }),
    ["Limited by the processor", "all weights in memory"]);
  assert.equal(list.planFacts({ ...PLAN, is_dense: true })[1], "34 % of the layers in memory");
  assert.deepEqual(list.planFacts({ drive_bytes_per_token: [5e6, 5e6] }),
    ["5.0 MB from the drive per token"]);
  assert.deepEqual(list.planFacts({}), []);
  assert.equal(list.needOf({ least_bytes: 27.3e9 }), "Needs at least 27.3 GB of memory");
});

test("only what the server allows has a button", () => {
  const on = { manage: { allowed: true }, current: "other" };
  const names = (model, where) => list.actionsOf(model, where).map(({ label }) => label).join();
  assert.equal(names(MODEL, on), "Load,Download,Remove");
  assert.equal(names({ ...MODEL, place: "partial", can: ["pull"] }, on), "Resume");
  assert.equal(names({ ...MODEL, can: [] }, on), "");
  assert.equal(names(MODEL, { ...on, current: "a" }), "Download");
  assert.equal(names(MODEL, { ...on, manage: { allowed: false } }), "");
});

test("a name of the hub is taken from what people paste", () => {
  for (const name of ["mlx/Qwen3-30B", "a/b:Q4_K_M", "a/b@refs/pr/1", "a/b:Q4@main"]) {
    assert.equal(list.hubName(` ${name} `), name);
  }
  const host = "https://hub.example/";
  assert.equal(list.hubName(`${host}mlx/Qwen3`), "mlx/Qwen3");
  assert.equal(list.hubName(`${host}mlx/Qwen3/tree/main`), "mlx/Qwen3");
  assert.equal(list.hubName("mlx/Qwen3/"), "mlx/Qwen3");
  for (const text of ["", "qwen", "a/b/c", "a b/c", "/b", "a/", "<b>/x"]) {
    assert.equal(list.hubName(text), null, text);
  }
});

test("an offer allows a download, a load, or nothing", () => {
  const offer = {
    bytes: 17.2e9, missing_bytes: 17.2e9, free_bytes: 22e9, fits_drive: true, runs: true,
    problem: null, n_files: 12, described: "qwen3_moe", expected: null,
  };
  const way = (more) => list.offerWay({ ...offer, ...more });
  assert.deepEqual(way({}), { way: "pull", reason: "" });
  assert.equal(way({ runs: false }).way, "pull");
  assert.match(way({ runs: false }).reason, /cannot run/);
  assert.equal(way({ missing_bytes: 0 }).way, "load");
  assert.equal(way({ missing_bytes: 0, fits_drive: false }).way, "load");
  const full = way({ fits_drive: false, free_bytes: 3e9 });
  assert.equal(full.way, "refused");
  assert.match(full.reason, /3\.0 GB free.*needs 17\.2 GB/);
  assert.deepEqual(way({ problem: "name the kind" }), { way: "refused", reason: "Name the kind" });
  const facts = Object.fromEntries(list.offerFacts({ ...offer, missing_bytes: 4e9 }));
  assert.equal(facts.Size, "17.2 GB in 12 files");
  assert.equal(facts["Still to download"], "4.0 GB");
  assert.equal("Expected here" in facts, false);
});

test("a task is said in words, with the time that is left", () => {
  assert.deepEqual(tasks.factsOf(TASK),
    ["Downloading: 3.1 of 17.2 GB", "10.0 MB/s", "about 24 min left"]);
  assert.equal(tasks.lineOf(TASK), "Downloading Qwen3 · 18 % · about 24 min left");
  assert.ok(Math.abs(tasks.shareOf(TASK) - 0.18) < 0.01);
  const unknown = { ...TASK, bytes_per_s: null };
  assert.deepEqual(tasks.factsOf(unknown), ["Downloading: 3.1 of 17.2 GB"]);
  const load = { ...TASK, kind: "load", done_bytes: null, total_bytes: null, bytes_per_s: null };
  const phase = (name, nAnswers = null) =>
    tasks.factsOf({ ...load, phase: name, n_answers: nAnswers }).join();
  assert.equal(phase("draining", 2), "2 answers are ending");
  assert.equal(phase("draining", 1), "1 answer is ending");
  assert.equal(phase("draining", 0), "Waiting for answers to end");
  assert.equal(phase("freeing"), "Freeing the old model");
  assert.equal(phase("restoring"), "Bringing the old model back");
  assert.equal(phase("something new"), "Working");
  const freeing = tasks.lineOf({ ...load, phase: "freeing" });
  assert.equal(freeing, "Loading Qwen3 · Freeing the old model");
  assert.equal(tasks.shareOf(load), null);
  assert.equal(tasks.shareOf({ ...TASK, done_bytes: 18e9 }), 1);
});

test("the end of a task is said in words", () => {
  const title = (kind, state) => tasks.titleOf({ ...TASK, kind, state });
  assert.equal(title("pull", "done"), "Qwen3 is downloaded");
  assert.equal(title("load", "failed"), "Qwen3 was not loaded");
  assert.equal(title("pull", "cancelled"), "The download of Qwen3 was cancelled");
  assert.equal(title("pack", "done"), "Qwen3");
  const lost = tasks.lost(TASK);
  assert.equal(lost.state, "failed");
  assert.match(lost.message, /resume/);
});

test("a server that was not there at first is asked until it answers", async (t) => {
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  const { BroadcastChannel } = globalThis;
  globalThis.BroadcastChannel = class extends EventTarget {};
  t.after(() => { globalThis.BroadcastChannel = BroadcastChannel; });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let nAsked = 0;
  const server = {
    async task() {
      nAsked += 1;
      if (nAsked < 3) throw Object.assign(new Error("not there"), { kind: "offline" });
      return null;
    },
  };
  const manager = new ModelManager({ server, onChange() {}, onEnd() {} });
  await manager.find();
  for (const expected of [2, 3, 3]) {
    assert.equal(manager.isThere, nAsked === 3);
    t.mock.timers.tick(10_000);
    await settled();
    assert.equal(nAsked, expected);
  }
  assert.ok(manager.isThere);
});
