// Models for the scripted server: a list, and tasks that take a moment or wait for the check.
import { fail, read, send } from "./scripted_server.mjs";

const STEP_MS = 60;
const POSTS = ["offer", "pull", "load", "cancel", "remove"];

const plan = (low, high, more = {}) => ({
  fits: true, least_bytes: null, in_memory: 0.34, drive_bytes_per_token: [1.2e8, 4.5e8],
  answer_tokens_per_s: [low, high], prompt_tokens_per_s: [20, 55], bound: "drive", ...more,
});
const tooLarge = (least) => ({
  fits: false, least_bytes: least, in_memory: null, drive_bytes_per_token: null,
  answer_tokens_per_s: null, prompt_tokens_per_s: null, bound: null,
});
const model = (id, name, more) => ({
  id, name, size: null, place: "hub", repository: null, stored: "4 bit", download_bytes: null,
  here_bytes: 0, plan: null, problem: null, can: [], ...more,
});
const here = (bytes) => ({ place: "here", download_bytes: bytes, here_bytes: bytes });

/** As a server sorts them: what runs well, what does not fit, what is not supported. */
function someModels() {
  return [
    model("demo", "scripted-model", { ...here(4e6), stored: "f32", can: ["load"], plan:
      plan(410, 620, { in_memory: 1, drive_bytes_per_token: [0, 0], bound: "CPU" }) }),
    model("gpt-oss-20b", "gpt-oss-20b", { size: "21B-A3.6B", stored: "MXFP4", ...here(12.1e9),
      repository: "openai/gpt-oss-20b", can: ["load", "remove"], plan:
      plan(14.2, 21.8, { in_memory: 1, drive_bytes_per_token: [0, 0], bound: "CPU" }) }),
    model("qwen3-30b-a3b", "Qwen3-30B-A3B", { size: "30B-A3B", download_bytes: 17.2e9, plan:
      plan(3.1, 7.9), repository: "mlx-community/Qwen3-30B-A3B-4bit", can: ["pull"] }),
    model("glm-4.5-air", "GLM-4.5-Air", { size: "106B-A12B", place: "partial", plan: plan(0.8, 1.6),
      download_bytes: 60.2e9, here_bytes: 21.5e9, can: ["pull", "remove"],
      repository: "mlx-community/GLM-4.5-Air-4bit" }),
    model("mixtral", "Mixtral-8x7B-Instruct-v0.1", { size: "47B-A13B", download_bytes: 26.4e9,
      plan: plan(0.02, 0.4, { in_memory: 0.002, bound: "network" }), can: ["pull"] }),
    model("qwen3-235b-a22b", "Qwen3-235B-A22B-Instruct-2507", { size: "235B-A22B", can: ["pull"],
      download_bytes: 132e9, plan: tooLarge(27.3e9) }),
    model("deepseek-v3.1", "DeepSeek-V3.1", { size: "671B-A37B", stored: "FP8", can: ["pull"],
      download_bytes: 688e9, plan: tooLarge(41e9) }),
    model("someone/new-moe", "new-moe", { ...here(9.9e9), stored: "bf16", can: ["remove"],
      problem: "moeflux cannot run it: the family new_moe is not supported" }),
  ];
}

export class ScriptedModels {
  start = "start-1";
  manage = { allowed: true, reason: null };
  list = someModels();
  current = "demo";
  task = null;
  offer = {
    n_files: 12, bytes: 17.2e9, missing_bytes: 17.2e9, free_bytes: 22e9, fits_drive: true,
    runs: true, described: "qwen3_moe, 4 bits in groups of 64", problem: null,
    expected: "answers 3 to 8 tokens/s, bound by the drive",
  };
  /** Steps of a download and of a load; with Infinity they wait for `cancel` or another number. */
  nPullSteps = 8;
  nLoadSteps = 6;
  nAnswers = 2;
  /** What goes wrong, or null. */
  pullFailure = null;
  loadFailure = null;
  /** What was asked for, of the form `{path, body}`. */
  posts = [];
  nListed = 0;
  nTaskAsked = 0;
  #nTasks = 0;
  #isCancelled = false;

  has(path) {
    return /^\/moeflux\/(?:models|task|offer|pull|load|cancel|remove)$/.test(path);
  }

  async answer(server, request, response) {
    const what = request.url.split("/").at(-1);
    if (what === "models") {
      this.nListed += 1;
      return send(response, 200, this.#listed());
    }
    if (what === "task") {
      this.nTaskAsked += 1;
      return send(response, 200, { task: this.task });
    }
    const body = JSON.parse(await read(request));
    if (request.method !== "POST" || !POSTS.includes(what)) return fail(response, 405, "no");
    if (request.headers["x-moeflux-start"] !== this.start) {
      return fail(response, 403, "the page is of an earlier start", "stale_start");
    }
    this.posts.push({ what, body });
    if (!this.manage.allowed) return fail(response, 403, this.manage.reason, "manage_off");
    return this[`_${what}`](server, body, response);
  }

  #listed() {
    const models = this.manage.allowed ? this.list : this.list.map((it) => ({ ...it, can: [] }));
    return { manage: this.manage, hub: "huggingface.co", free_disk_bytes: 123e9,
      memory_bytes: 24e9, current: this.current, models };
  }

  #known(id) {
    const known = this.list.find((it) => it.id === id);
    return known ?? (id.includes("/") ? model(id, id.split("/")[1]) : null);
  }

  _offer(server, { model: id }, response) {
    const known = this.#known(id);
    if (!known) return fail(response, 404, `no model ${id}`, "unknown_model");
    return send(response, 200, { model: id, name: known.name, ...this.offer });
  }

  _pull(server, { model: id, bytes }, response) {
    if (bytes !== this.offer.missing_bytes) return fail(response, 409, "it changed", "changed");
    return this.#begin(id, "pull", response, (task) => this.#pull(server, task, bytes));
  }

  _load(server, { model: id }, response) {
    return this.#begin(id, "load", response, (task) => this.#load(server, task));
  }

  _remove(server, { model: id }, response) {
    return this.#begin(id, "remove", response, async (task) => {
      await this.#steps(task, "removing", 3);
      this.list = this.list.filter((it) => it.id !== id);
      Object.assign(task, { state: "done" });
    });
  }

  _cancel(server, body, response) {
    if (this.task?.state !== "running") return fail(response, 409, "nothing runs", "idle");
    this.#isCancelled = true;
    return send(response, 202, { task: this.task });
  }

  #begin(id, kind, response, run) {
    if (this.task?.state === "running") return fail(response, 409, "a task runs already", "busy");
    const known = this.#known(id);
    if (!known) return fail(response, 404, `no model ${id}`, "unknown_model");
    this.#nTasks += 1;
    this.#isCancelled = false;
    const { name } = known;
    this.task = { id: this.#nTasks, kind, model: id, name, state: "running", phase: "asking",
      done_bytes: null, total_bytes: null, bytes_per_s: null, seconds: 0, n_answers: null,
      message: null };
    run(this.task);
    return send(response, 202, { task: this.task });
  }

  /** Goes through a phase; returns whether it came to its end. `steps` may grow meanwhile. */
  async #steps(task, phase, steps, total = null) {
    const nSteps = typeof steps === "number" ? () => steps : steps;
    Object.assign(task, { phase, done_bytes: null, total_bytes: null, bytes_per_s: null });
    for (let step = 0; step < nSteps(); step += 1) {
      if (this.#isCancelled) return false;
      const share = Math.min(step / Math.min(nSteps(), 50), 0.98);
      if (total) Object.assign(task, { done_bytes: share * total, total_bytes: total,
        bytes_per_s: 4.1e7 });
      task.seconds += STEP_MS / 1000;
      await new Promise((resolve) => setTimeout(resolve, STEP_MS));
    }
    return true;
  }

  async #pull(server, task, bytes) {
    await this.#steps(task, "asking", 2);
    await this.#steps(task, "checking", 2);
    const isWhole = await this.#steps(task, "downloading", () => this.nPullSteps, bytes);
    const known = this.list.find(({ id }) => id === task.model);
    if (this.pullFailure) {
      Object.assign(task, { state: "failed", message: this.pullFailure });
    } else if (isWhole) {
      Object.assign(known ?? {}, here(bytes), { can: ["load", "remove"] });
      Object.assign(task, { state: "done", message: null });
    } else {
      Object.assign(known ?? {}, { place: "partial", here_bytes: 5.1e9 });
      const message = "What arrived is kept; pull resumes it.";
      Object.assign(task, { state: "cancelled", message });
    }
  }

  async #load(server, task) {
    await this.#steps(task, "opening", 3);
    task.n_answers = this.nAnswers;
    server.health = "draining";
    await this.#steps(task, "draining", this.nAnswers > 0 ? 12 : 0);
    task.n_answers = null;
    server.health = "loading";
    await this.#steps(task, "freeing", 2);
    const isWhole = await this.#steps(task, "loading", () => this.nLoadSteps, 17e9);
    const isGood = isWhole && !this.loadFailure;
    if (!isGood) {
      this.#isCancelled = false;
      await this.#steps(task, "restoring", 6, 4e6);
    } else {
      this.current = task.model;
      server.props = { ...server.props, model: task.name, max_model_len: 32_768,
        chat_template_caps: { supports_tools: true, supports_thinking: false } };
    }
    server.health = "ok";
    const cancelled = { state: "cancelled", message: null };
    const failed = { state: "failed", message: this.loadFailure };
    Object.assign(task, isGood ? { state: "done" } : isWhole ? failed : cancelled);
  }
}
