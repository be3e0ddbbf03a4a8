// Turns the list of models, and an offer of the hub, into groups and texts.
//
// Pure functions. Invariant: the order is that of the server, which knows what runs well; a number
// that is not known is left out.

import { count, percent, sentence, size, sizes } from "./words.js";

const TITLES = {
  fits: "Runs on this machine",
  unknown: "Not measured yet",
  large: "Needs more memory",
  unsupported: "Not supported",
};
const BOUNDS = {
  drive: "the drive",
  CPU: "the processor",
  GPU: "the graphics card",
  network: "the network",
};
// A name that the server takes, with the kind of a GGUF file or a revision.
const HUB_NAME = /^[\w.-]+\/[\w.-]+(?::[\w.-]+)?(?:@[\w./-]+)?$/;

/** Lists of the form `{key, title, models}`, in the order of their first models. */
export function groupsOf(models) {
  const groups = new Map();
  for (const model of models) {
    const key = groupOf(model);
    if (!groups.has(key)) groups.set(key, { key, title: TITLES[key], models: [] });
    groups.get(key).models.push(model);
  }
  return [...groups.values()];
}

function groupOf({ problem, plan }) {
  if (problem) return "unsupported";
  if (!plan) return "unknown";
  return plan.fits ? "fits" : "large";
}

/** Whether each word of the filter is somewhere in what a row says of the model. */
export function isFound({ id, name, size: nominal, repository, stored }, filter) {
  const text = [id, name, nominal, repository, stored].join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The nominal size, if the name does not have it, and how the weights are stored. */
export function kindOf({ name, size: nominal, stored }) {
  const isNamed = nominal && name.toLowerCase().includes(nominal.toLowerCase());
  return [isNamed ? null : nominal, stored].filter(Boolean).join(" · ");
}

export function placeOf({ place, download_bytes: whole, here_bytes: here }) {
  if (place === "here") return here > 0 ? `Here, ${size(here)}` : "Here";
  if (place === "partial") {
    return whole > 0 ? `Partly downloaded, ${sizes(here, whole, " of ")}` : "Partly downloaded";
  }
  return whole > 0 ? `Download of ${size(whole)}` : "Not downloaded";
}

/** "3.1–7.9", "up to 0.4", or one number if both are alike; null if they are not known. */
export function rates(range) {
  if (!range?.every(Number.isFinite)) return null;
  const [low, high] = range.map((it) => (it < 9.95 ? it.toFixed(1) : count(it)));
  if (high === "0.0") return "under 0.1";
  if (low === high) return low;
  return low === "0.0" ? `up to ${high}` : `${low}–${high}`;
}

/** What a plan that fits says besides the rate of answers. */
export function planFacts({ in_memory: share, is_dense: isDense, drive_bytes_per_token: read,
  bound }) {
  const facts = [];
  if (bound) facts.push(`limited by ${BOUNDS[bound] ?? bound}`);
  if (share >= 1) facts.push(isDense ? "all weights in memory" : "all experts in memory");
  else if (Number.isFinite(share)) {
    facts.push(`${percent(share)} of the ${isDense ? "layers" : "experts"} in memory`);
  }
  if (read?.[1] > 0) facts.push(`${driveBytes(read)} from the drive per token`);
  return facts.map((fact, index) => (index === 0 ? sentence(fact) : fact));
}

function driveBytes([low, high]) {
  if (size(Math.round(low)) === size(Math.round(high))) return size(Math.round(high));
  return sizes(low, high, "–");
}

export function needOf({ least_bytes: least }) {
  return least > 0 ? `Needs at least ${size(least)} of memory` : "Does not fit into the memory";
}

/** The buttons of a row, as `{name, label}`; what the server does not allow is left out. */
export function actionsOf(model, { manage, current }) {
  if (!manage.allowed) return [];
  const can = new Set(model.can);
  const pull = model.place === "partial" ? "Resume" : "Download";
  const known = [
    { name: "load", label: "Load", is: can.has("load") && model.id !== current },
    { name: "pull", label: pull, is: can.has("pull") && model.place !== "here" },
    { name: "remove", label: "Remove", is: can.has("remove") && model.id !== current },
  ];
  return known.filter(({ is }) => is).map(({ name, label }) => ({ name, label }));
}

/** What a person typed, or the address of a page of the hub, as a name; null if it is none. */
export function hubName(text) {
  const path = text.trim().replace(/^https?:\/\/[^/]+\//, "")
    .replace(/\/(?:tree|blob)\/.*$|\/$/, "");
  return HUB_NAME.test(path) ? path : null;
}

/** What an offer allows, with the reason if it is nothing: "refused", "pull" or "load". */
export function offerWay({ problem, fits_drive: fitsDrive, runs, missing_bytes: missing,
  free_bytes: free }) {
  if (problem) return { way: "refused", reason: sentence(problem) };
  if (missing === 0) return { way: runs ? "load" : "refused", reason: "All of it is here." };
  if (!fitsDrive) {
    const reason = `The drive has ${size(free)} free, and the download needs ${size(missing)}. `
      + "Remove a model or free space, then ask again.";
    return { way: "refused", reason };
  }
  return { way: "pull", reason: runs ? "" : "This machine cannot run it as it is now." };
}

/** Pairs of a name and a text about an offer. */
export function offerFacts({ bytes, missing_bytes: missing, n_files: nFiles, free_bytes: free,
  described, expected }) {
  const isPartial = missing < bytes;
  const files = nFiles > 0 ? ` in ${nFiles === 1 ? "1 file" : `${nFiles} files`}` : "";
  const facts = [["Size", size(bytes) + files]];
  if (isPartial) facts.push(["Still to download", size(missing)]);
  facts.push(["Free on the drive", size(free)]);
  if (described) facts.push(["What it is", described]);
  if (expected) facts.push(["Expected here", expected]);
  return facts;
}
