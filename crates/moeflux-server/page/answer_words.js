// Says in words how far an answer is, what is known of it, and what went wrong with it.

import { lineOf, shareOf } from "./tasks.js";
import { about, count, duration, plural, rate } from "./words.js";

/** What an answer is waiting for, and how far that is (0 to 1, or null). */
export function statusOf(generation) {
  if (!generation) return { text: "Another tab receives this answer.", share: null };
  const waited = (performance.now() - generation.startedMs) / 1000;
  const since = waited >= 2 ? `, ${duration(waited)}` : "";
  const { phase, progress } = generation;
  if (phase === "changing") {
    const { change } = generation;
    return { text: `The answer follows. ${lineOf(change)}`, share: shareOf(change) };
  }
  if (phase === "loading") {
    return { text: `The server is loading the model. The answer follows${since}`, share: null };
  }
  if (phase === "busy") return { text: `The server is busy. Trying again${since}`, share: null };
  if (phase === "again") {
    const percent = Math.floor(generation.share * 100);
    return { text: `Computing the kept part again: ${percent} %`, share: generation.share };
  }
  if (phase === "answering") {
    const seconds = (performance.now() - generation.firstMs) / 1000;
    const speed = seconds > 0.5 ? rate(generation.nPieces, seconds) : "";
    return { text: speed ? `${plural(generation.nPieces, "token")} · ${speed}` : "", share: null };
  }
  if (!progress) return { text: `Reading the prompt${since}`, share: null };
  const left = secondsLeft(progress);
  const parts = [`Reading the prompt: ${count(progress.processed)} of ${
    plural(progress.total, "token")}`];
  if (left !== null) parts.push(`${about(left)} left`);
  return { text: parts.join(" · "), share: progress.processed / progress.total };
}

/** What the server expects, or what follows from its rate so far. */
function secondsLeft({ seconds_left: left, time_ms: time, processed, cache = 0, total }) {
  if (Number.isFinite(left)) return left;
  const nRead = processed - cache;
  if (!(time > 500) || nRead <= 0) return null;
  return (time / 1000) * ((total - processed) / nRead);
}

/** What is known of an answer that has ended, in one line. */
export function factsOf(turn) {
  if (turn.edited) return "edited";
  const parts = [];
  const { usage, seconds, nPieces = 0 } = turn;
  const nTokens = usage?.answer ?? nPieces;
  if (nTokens > 0) parts.push(plural(nTokens, "token"));
  if (seconds?.answer) parts.push(rate(nTokens, seconds.answer));
  if (seconds?.first) parts.push(`first after ${duration(seconds.first)}`);
  if (usage?.prompt) {
    const cached = usage.cached ? `, ${count(usage.cached)} cached` : "";
    parts.push(`prompt ${plural(usage.prompt, "token")}${cached}`);
  }
  return parts.filter((part) => part !== "").join(" · ");
}

/** What went wrong with an answer, in one line, and the ways on. */
export function troubleOf({ state, error, seed, asked }) {
  const resume = seed !== undefined && asked ? [{ label: "Continue", way: "resume" }] : [];
  const again = { label: "Answer again", way: "again" };
  const retry = { label: "Try again", way: "again" };
  if (state === "stopped") return { text: "Stopped.", ways: [...resume, again], isCalm: true };
  if (state === "length") {
    const text = "The answer reached its limit of tokens.";
    return { text, ways: [...resume, again], isCalm: true };
  }
  if (state === "cut") {
    const text = error?.message ?? "A part of the answer is missing.";
    return { text, ways: [...resume, again], isCalm: false };
  }
  if (state !== "failed") return null;
  if (!error) return { text: "Stopped before it began.", ways: [retry], isCalm: true };
  const edit = { label: "Edit the message", way: "edit" };
  if (error.kind === "length") {
    const shorten = { label: "Leave out the oldest turns", way: "shorten" };
    return { text: error.message, ways: [shorten, edit], isCalm: false };
  }
  return { text: error.message, ways: [retry, edit], isCalm: false };
}
