// The turns of a conversation as a tree, and the branch of it that is shown.
//
// A turn has `id`, `parent` (an id, or null), `created` (ms) and `role`: "user", "assistant" or
// "tool". Turns never move: an edit or another answer is a new turn beside the old one. The
// conversation's `chosen` says which child of a turn is shown; without an entry it is the newest.
// Invariant: functions change nothing that is passed to them.

/** The name under which `chosen` keeps the choice among first turns. */
const ROOT = "root";

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Turns by parent, oldest first; a turn whose parent is not there counts as a first one. */
function byParent(turns) {
  const known = new Set(turns.map((turn) => turn.id));
  const children = new Map();
  for (const turn of turns) {
    const parent = known.has(turn.parent) ? turn.parent : ROOT;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(turn);
  }
  for (const list of children.values()) list.sort(byAge);
  return children;
}

function byAge(a, b) {
  return a.created - b.created || (a.id < b.id ? -1 : 1);
}

/**
 * The shown branch from the first turn to the last: a list of `{turn, siblings, index}`, where
 * `siblings` are the ids of the versions of that turn, and `index` is the place of the shown one.
 */
export function shownBranch(turns, chosen) {
  const children = byParent(turns);
  const branch = [];
  let parent = ROOT;
  for (;;) {
    const versions = children.get(parent);
    if (!versions) return branch;
    const found = versions.findIndex((turn) => turn.id === chosen[parent]);
    const index = found < 0 ? versions.length - 1 : found;
    const turn = versions[index];
    branch.push({ turn, siblings: versions.map((version) => version.id), index });
    // A loop of parents can only come from a damaged file; no turn is shown twice.
    children.delete(parent);
    parent = turn.id;
  }
}

/** `chosen` after the turn was picked among its versions. */
export function choose(chosen, turn) {
  return { ...chosen, [turn.parent ?? ROOT]: turn.id };
}

/** The turns from the first to this one. */
export function lineage(turns, id) {
  const known = new Map(turns.map((turn) => [turn.id, turn]));
  const line = [];
  for (let turn = known.get(id); turn && !line.includes(turn); turn = known.get(turn.parent)) {
    line.unshift(turn);
  }
  return line;
}

/** The words of a turn, for search and titles. */
export function wordsOf(turn) {
  const files = (turn.files ?? []).map((file) => `${file.name}\n${file.text}`);
  const results = (turn.results ?? []).map((result) => result.content);
  return [turn.text ?? "", ...files, ...results].join("\n");
}

/** A title from the first question. */
export function titleFrom(turn) {
  const line = (turn.text || turn.files?.[0]?.name || "").trim().split("\n")[0].trim();
  const characters = Array.from(line);
  return characters.length > 60 ? `${characters.slice(0, 57).join("").trimEnd()}…` : line;
}
