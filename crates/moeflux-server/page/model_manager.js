// The models that the server can run: asks for them, begins tasks, and follows the running one.
//
// Invariant: the server is asked again and again only while a task runs or somebody looks at the
// list, and until it has answered once. Tabs of one browser tell each other when a task begins;
// others see it when they come to the front. A task is followed to its end in a hidden tab too,
// because a load may have to follow it.

import { keepLoadAfter, loadAfter } from "./kept.js";
import { isRunning, lost } from "./tasks.js";

const RUNNING_MS = 500;
const IDLE_MS = 5_000;
const RETRY_MS = 2_000;

export class ModelManager {
  /** Whether the server can change its model at all. */
  isThere = false;
  /** What `/moeflux/models` said last, or null. */
  list = null;
  task = null;
  /** Why the newest request got no answer, or "". */
  trouble = "";
  #server;
  #onChange;
  #onEnd;
  #channel = new BroadcastChannel("moeflux models");
  #timer = 0;
  #isWatched = false;
  #isObserved = false;
  /** Whether the server was not there when it was asked for the first time. */
  #isAwaited = false;
  #nAsked = 0;
  #own = new Set();
  #seen = null;

  /** `onChange()` is called when anything is another, `onEnd(task)` when a task has ended. */
  constructor({ server, onChange, onEnd }) {
    this.#server = server;
    this.#onChange = onChange;
    this.#onEnd = onEnd;
    this.#channel.addEventListener("message", () => this.#poll());
  }

  /** Asks whether the server can change its model, and what it does now. */
  async find() {
    await this.#poll();
  }

  /** Keeps the list and the task fresh until `unwatch`. */
  watch() {
    this.#isWatched = true;
    this.refresh();
    this.#poll();
  }

  unwatch() {
    this.#isWatched = false;
    if (isRunning(this.task)) return;
    clearTimeout(this.#timer);
    this.forget();
  }

  /** The report of a task that has ended was read. */
  forget() {
    this.#seen = null;
    this.#onChange();
  }

  async refresh() {
    try {
      this.list = await this.#server.models();
      this.trouble = "";
    } catch (error) {
      this.trouble = error.message;
    }
    this.#onChange();
  }

  /** Whether this tab began the task. */
  isOwn(task) {
    return this.#own.has(keyOf(task));
  }

  /** Whether this tab has seen the task run, and nobody has read yet how it ended. */
  wasSeen(task) {
    return this.#seen === keyOf(task);
  }

  /** Whether the model is loaded when the running download ends. */
  get loadsAfter() {
    return isRunning(this.task) && loadAfter() === keyOf(this.task);
  }

  nameOf(id) {
    return this.list?.models.find((model) => model.id === id)?.name ?? id;
  }

  offer(model, signal) {
    return this.#server.manage("offer", { model }, signal);
  }

  async pull(model, nBytes, { thenLoad }) {
    const task = await this.#begin("pull", { model, bytes: nBytes });
    if (thenLoad) keepLoadAfter(keyOf(task));
  }

  load(model) {
    return this.#begin("load", { model });
  }

  remove(model) {
    return this.#begin("remove", { model });
  }

  async cancel() {
    keepLoadAfter("");
    const { task } = await this.#server.manage("cancel", {});
    this.#take(task);
    this.#wait();
  }

  async #begin(what, body) {
    let task;
    try {
      ({ task } = await this.#server.manage(what, body));
    } catch (error) {
      // Another tab was quicker, or the list is old.
      this.#poll();
      this.refresh();
      throw error;
    }
    this.#own.add(keyOf(task));
    keepLoadAfter("");
    this.#channel.postMessage("began");
    this.#isObserved = true;
    this.#seen = keyOf(task);
    this.#take(task);
    this.#wait();
    return task;
  }

  async #poll() {
    clearTimeout(this.#timer);
    this.#nAsked += 1;
    const asked = this.#nAsked;
    let pause = null;
    try {
      const task = await this.#server.task();
      if (asked !== this.#nAsked) return;
      this.isThere = true;
      this.#isAwaited = false;
      this.#take(task);
      // The server is there again, perhaps another one.
      if (this.trouble && this.#isWatched) this.refresh();
    } catch (error) {
      if (asked !== this.#nAsked) return;
      if (error.kind === "missing") this.isThere = false;
      else pause = RETRY_MS;
      this.#isAwaited = error.kind === "offline" && !this.#isObserved;
      this.trouble = error.message;
      this.#onChange();
    }
    this.#wait(pause);
  }

  /** An older answer must not come behind a newer one: only the newest request counts. */
  #wait(pause = null) {
    clearTimeout(this.#timer);
    this.#nAsked += 1;
    const isFollowed = isRunning(this.task);
    if (!isFollowed && !this.#isWatched && !this.#isAwaited) return;
    const usual = isFollowed && !document.hidden ? RUNNING_MS : IDLE_MS;
    this.#timer = setTimeout(() => this.#poll(), pause ?? usual);
  }

  #take(told) {
    const before = this.task;
    const task = isRunning(before) && told === null ? lost(before) : told;
    const isFirst = !this.#isObserved;
    this.#isObserved = true;
    this.task = task;
    if (isRunning(task)) this.#seen = keyOf(task);
    const isSame = keyOf(before) === keyOf(task);
    const isAwaited = isFirst && task?.state === "done" && loadAfter() === keyOf(task);
    const hasEnded = task && !isRunning(task)
      && (isAwaited || (isSame ? isRunning(before) : !isFirst));
    // Another task has begun since the one that was followed: its end was missed.
    if (!isSame && isRunning(before) && told) this.#onEnd({ ...before, state: "missed" });
    if (hasEnded) this.#ended(task);
    this.#onChange();
  }

  #ended(task) {
    const isAwaited = loadAfter() === keyOf(task);
    if (isAwaited) keepLoadAfter("");
    if (this.#isWatched || this.list) this.refresh();
    const isLoadedNext = isAwaited && task.state === "done";
    this.#onEnd({ ...task, isLoadedNext });
    if (!isLoadedNext) return;
    this.load(task.model).catch(({ message }) =>
      this.#onEnd({ ...task, kind: "load", state: "failed", message }));
  }
}

function keyOf(task) {
  return task ? `${task.id} ${task.kind} ${task.model}` : "";
}
