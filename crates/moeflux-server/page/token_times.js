// Where the time of one token went: each layer's computing, and its waiting for the drive.
//
// Pure functions. Invariant: the parts of all layers are in order, do not overlap, and together are
// the whole, so that a picture can be drawn from their shares.

import { plural, shortTime } from "./words.js";

const N_TICKS_MAX = 5;
const N_PAGE = 10;

/** The times that the server told, as parts of a line; null if there are none to show. */
export function tokenTimes(told) {
  const layers = (told?.layers ?? []).map(({ seconds, wait_s: waitS, ...rest }) => {
    const known = positive(seconds);
    return { ...rest, seconds: known, waitS: Math.min(known, positive(waitS)) };
  });
  const seconds = sum(layers, (it) => it.seconds);
  if (!(seconds > 0)) return null;
  let before = 0;
  const parts = layers.map((it) => {
    const start = before / seconds;
    before += it.seconds;
    const computeShare = (it.seconds - it.waitS) / seconds;
    return { ...it, start, computeShare, waitShare: it.waitS / seconds };
  });
  const slowest = parts.reduce((most, it) => (it.seconds > most.seconds ? it : most));
  return { seconds, waitS: sum(parts, (it) => it.waitS), slowest, parts };
}

function positive(number) {
  return Number.isFinite(number) && number > 0 ? number : 0;
}

function sum(layers, part) {
  return layers.reduce((all, it) => all + part(it), 0);
}

/** The index of the part at this share of the whole, or null outside of it. */
export function partAt({ parts }, across) {
  if (!(across >= 0 && across < 1)) return null;
  return parts.findLastIndex(({ start, seconds }) => start <= across && seconds > 0);
}

/** The index that a key leads to from another; null if the key means nothing here. */
export function movedPart({ parts }, index, key) {
  const steps = {
    ArrowLeft: index - 1,
    ArrowRight: index + 1,
    Home: 0,
    End: parts.length - 1,
    PageUp: index - N_PAGE,
    PageDown: index + N_PAGE,
  };
  return key in steps ? Math.min(parts.length - 1, Math.max(0, steps[key])) : null;
}

/** Places of a scale with round steps, as shares of the whole, with their texts. */
export function ticks(seconds) {
  const least = seconds / N_TICKS_MAX;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((it) => power * it >= least * (1 - 1e-9));
  const n = Math.floor((seconds / step) * (1 + 1e-9));
  return Array.from({ length: n + 1 }, (_, index) =>
    ({ share: Math.min(1, (index * step) / seconds), text: roundTime(index * step) }));
}

/** The time of a tick without digits that say nothing: "5 ms", "0.2 ms". */
function roundTime(seconds) {
  const [inUnit, unit] = seconds >= 0.9995 ? [seconds, "s"] : [seconds * 1000, "ms"];
  return `${Number(inUnit.toPrecision(3))} ${unit}`;
}

export function tokenSentence({ seconds, waitS, slowest }) {
  const wait = waitS > 0 ? `${shortTime(waitS)} of it waiting for the drive`
    : "none of it waiting for the drive";
  return `Last token: ${shortTime(seconds)}, ${wait}; slowest: layer ${slowest.layer}, ${
    shortTime(slowest.seconds)}.`;
}

/** The feed-forward of a layer that is streamed is its only expert: `areLayers`. */
export function partSentence({ layer, seconds, waitS, found, read }, areLayers = false) {
  const wait = waitS > 0 ? `${shortTime(waitS)} of it waiting` : "without waiting";
  const layerPlace = read > 0 ? "read from the drive" : "in memory";
  const place = areLayers ? layerPlace : `${plural(found, "expert")} in memory, ${read} read`;
  return `Layer ${layer}: ${shortTime(seconds)}, ${wait}; ${place}.`;
}
