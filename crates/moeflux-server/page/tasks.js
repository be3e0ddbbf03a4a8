// Says in words what the server does to its models: downloading, loading, removing.
//
// Pure functions of a task as the server tells it. Invariant: a phase that this page does not know
// is still shown, as work that goes on.

import { about, byteRate, percent, plural, sizes } from "./words.js";

const PHASES = {
  asking: "Asking the hub",
  checking: "Checking what is here",
  downloading: "Downloading",
  opening: "Checking whether it fits",
  draining: "Waiting for answers to end",
  freeing: "Freeing the old model",
  loading: "Loading",
  restoring: "Bringing the old model back",
  removing: "Removing",
};
const TITLES = {
  pull: {
    running: (name) => `Downloading ${name}`,
    done: (name) => `${name} is downloaded`,
    failed: (name) => `${name} was not downloaded`,
    cancelled: (name) => `The download of ${name} was cancelled`,
  },
  load: {
    running: (name) => `Loading ${name}`,
    done: (name) => `${name} is loaded`,
    failed: (name) => `${name} was not loaded`,
    cancelled: (name) => `Loading ${name} was cancelled`,
  },
  remove: {
    running: (name) => `Removing ${name}`,
    done: (name) => `${name} was removed`,
    failed: (name) => `${name} was not removed`,
    cancelled: (name) => `${name} was not removed`,
  },
};

export function isRunning(task) {
  return task?.state === "running";
}

export function titleOf({ kind, state, name }) {
  return TITLES[kind]?.[state]?.(name) ?? name;
}

/** The phase without numbers that move, as it is read aloud. */
export function phaseName({ phase, n_answers: nAnswers }) {
  if (phase === "draining" && nAnswers > 0) {
    return nAnswers === 1 ? "1 answer is ending" : `${plural(nAnswers, "answer")} are ending`;
  }
  return PHASES[phase] ?? "Working";
}

/** The phase, how far it is, how fast, and how long it will take, as far as they are known. */
export function factsOf(task) {
  const { done_bytes: done, total_bytes: total, bytes_per_s: rate } = task;
  const isMeasured = Number.isFinite(done) && total > 0;
  const parts = [phaseName(task) + (isMeasured ? `: ${sizes(done, total, " of ")}` : "")];
  if (isMeasured && rate > 0) parts.push(byteRate(rate));
  const left = secondsLeft(task);
  if (left !== null) parts.push(`${about(left)} left`);
  return parts;
}

/** In one line, for a place with little room. */
export function lineOf(task) {
  const share = shareOf(task);
  const left = secondsLeft(task);
  const parts = task.phase === "downloading" || task.phase === "loading" ? [] : [phaseName(task)];
  if (share !== null) parts.push(percent(share));
  if (left !== null) parts.push(`${about(left)} left`);
  return [titleOf(task), ...parts].join(" · ");
}

/** From 0 to 1, or null if the phase has no measure. */
export function shareOf({ done_bytes: done, total_bytes: total }) {
  return Number.isFinite(done) && total > 0 ? Math.min(1, done / total) : null;
}

export function secondsLeft({ done_bytes: done, total_bytes: total, bytes_per_s: rate }) {
  if (!(rate > 0) || !(total > 0) || !Number.isFinite(done)) return null;
  return Math.max(0, total - done) / rate;
}

/** What became of a task that ran when the server ended: a new one knows nothing of it. */
export function lost(task) {
  const message = task.kind === "pull"
    ? "The server was started again meanwhile. What arrived is kept: resume it."
    : "The server was started again meanwhile.";
  return { ...task, state: "failed", message };
}
