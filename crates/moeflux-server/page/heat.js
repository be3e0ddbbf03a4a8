// What a heat map of experts shows: colours, sizes, places and a summary in words.
//
// A map is a list of layers, each with the uses of its experts and whether they are in memory.
// Layers may have different numbers of experts.

import { plural } from "./words.js";

// Heights of a row, in pixels of the page.
const [ROW_MIN, ROW_MAX] = [3, 8];
// From this width on, in pixels of the screen, cells have a gap between them.
const GAP_FROM = 4;
// The least share of the full colour that a used expert has, and one in memory without a use.
const [USED_MIN, KEPT] = [0.3, 0.16];

/** The share of the full colour that an expert has: logarithmic, because few are used most. */
export function brightness(nUses, nUsesMax, isInMemory) {
  if (!(nUses > 0)) return isInMemory ? KEPT : 0;
  return USED_MIN + (1 - USED_MIN) * (Math.log1p(nUses) / Math.log1p(Math.max(nUses, nUsesMax)));
}

/** The numbers of a colour that the browser computed, as "rgb(1, 2, 3)". */
export function readColour(text) {
  const found = text.match(/[\d.]+/g)?.slice(0, 3).map(Number) ?? [];
  return found.length === 3 ? found : [128, 128, 128];
}

export function mix(from, to, share) {
  return `rgb(${from.map((it, index) => Math.round(it + (to[index] - it) * share)).join(" ")})`;
}

/** Sizes of a map that is `width` wide, in pixels of the screen; `scale` are those of the page. */
export function layout(layers, width, scale) {
  const nColumns = columns(layers);
  const rowHeight = Math.round(scale * Math.min(ROW_MAX, Math.max(ROW_MIN, width / nColumns)));
  const gap = width / nColumns < GAP_FROM ? 0 : 1;
  return { nColumns, rowHeight, gap, width, height: layers.length * rowHeight };
}

/** The rectangle of a cell: x, y, width and height. Columns differ by a pixel in their widths. */
export function cell({ nColumns, rowHeight, gap, width }, { row, column }) {
  const [x, next] = [column, column + 1].map((it) => Math.floor((it * width) / nColumns));
  return [x, row * rowHeight, Math.max(1, next - x - gap), rowHeight - gap];
}

/** The place at these shares of width and height, or null where no expert is. */
export function placeAt(layers, across, down) {
  const column = Math.floor(across * columns(layers));
  const place = { row: Math.floor(down * layers.length), column };
  return isPlace(layers, place) ? place : null;
}

/** The place that a key leads to from another; null if the key means nothing here. */
export function moved(layers, { row, column }, key) {
  const steps = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    Home: [row, 0],
    End: [row, (layers[row]?.uses.length ?? 1) - 1],
    PageUp: [0, column],
    PageDown: [layers.length - 1, column],
  };
  if (!(key in steps)) return null;
  const next = { row: steps[key][0], column: steps[key][1] };
  return isPlace(layers, next) ? next : { row, column };
}

export function isPlace(layers, { row, column }) {
  return column >= 0 && column < (layers[row]?.uses.length ?? 0);
}

function columns(layers) {
  return Math.max(1, ...layers.map(({ uses }) => uses.length));
}

export function usesMax(layers) {
  return layers.reduce((most, { uses }) => uses.reduce((a, b) => Math.max(a, b), most), 0);
}

/** What a map says in words: of experts, or of layers, each of which is its own only expert. */
export const HEAT_WORDS = {
  experts: {
    title: "Experts",
    label: "Experts by layer",
    hint: "Point at an expert, or go to it with the arrow keys.",
    place: (layer, column) => `Layer ${layer}, expert ${column}`,
    all: ({ nLayers, nExperts }) =>
      `${plural(nLayers, "layer")} from top to bottom, with ${plural(nExperts, "expert")}`,
  },
  layers: {
    title: "Layers",
    label: "Layers",
    hint: "Point at a layer, or go to it with the arrow keys.",
    place: (layer) => `Layer ${layer}`,
    all: ({ nLayers }) => `${plural(nLayers, "layer")} from top to bottom`,
  },
};

/** Counts over all layers, and the share of uses that the most used tenth of the experts has. */
export function summary(layers) {
  const uses = layers.flatMap((layer) => layer.uses).sort((a, b) => b - a);
  const nUses = uses.reduce((sum, it) => sum + it, 0);
  const nInMemory = layers.reduce((sum, layer) => sum + layer.in_memory.filter(Boolean).length, 0);
  const nTenth = uses.slice(0, Math.ceil(uses.length / 10)).reduce((sum, it) => sum + it, 0);
  return {
    nLayers: layers.length,
    nExperts: uses.length,
    nInMemory,
    nUsed: uses.filter((it) => it > 0).length,
    tenthShare: nUses > 0 ? nTenth / nUses : null,
  };
}
