// Makes elements, and the icons of buttons.
//
// Invariant: texts become text nodes and attributes, never markup, and no element gets a style: the
// policy of the page forbids both. Markup is made in markup.js only.

const SVG = "http://www.w3.org/2000/svg";

// Paths on a grid of 24 by 24, drawn as lines.
const ICONS = {
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  compare: "M4 5h6.5v14H4zM13.5 5H20v14h-6.5z",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  help: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5v.5",
  left: "M14.5 6l-6 6 6 6",
  menu: "M4 5h16v14H4zM10 5v14",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  play: "M8 5.5v13l10-6.5z",
  plus: "M12 5v14M5 12h14",
  right: "M9.5 6l6 6-6 6",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5L20 20",
  send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 7a2 2 0 1 0 4 0 2 2 0 0 0-4 0zM6 17a2 2 0 1 0 4 0 "
    + "2 2 0 0 0-4 0z",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4"
    + "M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-3 3 .5 2 2 .5 3-3a4 4 0 0 1-5.5 5L8 21l-3-3 8-8.5a4 4 0 0 1 "
    + "1.5-3z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  again: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
};

/**
 * Makes an element. Attributes that are null or false are left out; `on` holds listeners. Children
 * are elements and texts; null is left out.
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Makes an element of a drawing; its attributes may say sizes and places, and classes the rest. */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  const about = { viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon" };
  return drawn("svg", about, drawn("path", { d: ICONS[name] }));
}

/** A button that shows only an icon; `label` is read aloud and shown on hover. */
export function iconButton(name, label, listener, attributes = {}) {
  const about = { type: "button", class: "icon-button", "aria-label": label, title: label };
  return element("button", { ...about, on: { click: listener }, ...attributes }, icon(name));
}

export function textButton(label, listener, attributes = {}) {
  const about = { type: "button", class: "button", on: { click: listener }, ...attributes };
  return element("button", about, label);
}

/** Gives the text to a person as a file. */
export function saveFile(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  // The download has begun when the next task runs; until then the address must stay.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copies a text; where the browser has no clipboard for pages without TLS, through a selection. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("the browser does not let the page copy");
  return undefined;
}
