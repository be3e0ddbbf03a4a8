// Dialogs: the key of the server, the list of keys, export and import.
//
// Each is made when it opens and removed when it closes; the browser keeps the focus in it and
// gives it back. Escape closes it.

import { element, iconButton, saveFile, textButton } from "./dom.js";
import { COMMANDS } from "./keys.js";
import { keepPreference, preference } from "./kept.js";
import { fromMarkdown, toMarkdown } from "./markdown_file.js";
import { fromJson, toJson } from "./portable.js";

/** Opens a dialog; `onClose` runs when it closes in any way. */
export function openDialog(title, children, { onClose = () => {}, className = "" } = {}) {
  const close = () => dialog.close();
  const head = element("header", {}, element("h2", { id: "dialog-title" }, title),
    iconButton("close", "Close", close));
  const dialog = element("dialog", { class: className, "aria-labelledby": "dialog-title" }, head,
    element("div", { class: "dialog-body" }, ...children));
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  dialog.addEventListener("pointerdown", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks for the key of the server; resolves to null if the dialog is closed without one. */
export function askForKey(wasRefused) {
  return new Promise((resolve) => {
    let key = null;
    const field = element("input", {
      type: "password",
      id: "server-key",
      autocomplete: "off",
      required: true,
      autofocus: true,
    });
    const form = element("form", { class: "key-form" },
      element("label", { for: "server-key" }, "Key of the server"), field,
      element("p", { class: "hint" }, wasRefused
        ? "The server refused this key. Its keys are in the file of --api-key-file."
        : "This server answers only with a key. It is kept until this tab is closed."),
      element("div", { class: "buttons" },
        element("button", { class: "button primary", type: "submit" }, "Use this key")));
    const dialog = openDialog("A key is needed", [form], { onClose: () => resolve(key) });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      key = field.value.trim() || null;
      dialog.close();
    });
  });
}

/** `without` names commands that this server has no use for. */
export function showHelp(version, without = []) {
  const known = COMMANDS.filter(({ name }) => !without.includes(name));
  const rows = known.map(({ keys, single, label }) => element("tr", {},
    element("td", {}, label), element("td", {}, keyCaps(keys)),
    element("td", {}, single ? element("kbd", {}, single) : "")));
  const box = element("input", { type: "checkbox", id: "single-keys" });
  box.checked = preference("singleKeys", true);
  box.addEventListener("change", () => keepPreference("singleKeys", box.checked));
  const head = element("tr", {}, element("th", { scope: "col" }, "What it does"),
    element("th", { scope: "col" }, "Keys"), element("th", { scope: "col" }, "Or"));
  openDialog("Keys", [
    element("table", { class: "keys" }, element("thead", {}, head), element("tbody", {}, ...rows)),
    element("label", { class: "check" }, box, "Single letters act outside of text fields"),
    element("p", { class: "hint" },
      `moeflux ${version}. Conversations are kept in this browser only. The `,
      element("a", { href: "/page/vendor/licences.txt", target: "_blank", rel: "noopener" },
        "licences of the libraries"), " of this page."),
  ]);
}

function keyCaps(keys) {
  return keys.split("+").flatMap((key, index) => {
    const cap = element("kbd", {}, key.replace("Arrow", ""));
    return index === 0 ? [cap] : ["+", cap];
  });
}

/**
 * Offers files of one conversation, or of all, and reads files. `read(branchOnly)` returns a list
 * of `{conversation, turns}`; `add` takes such a list.
 */
export function showExport({ title, name, read, add }) {
  const status = element("p", { class: "hint", role: "status" });
  const save = async (branchOnly) => {
    const list = await read(branchOnly);
    if (branchOnly) saveFile(`${name}.md`, "text/markdown", toMarkdown(list));
    else saveFile(`${name}.json`, "application/json", toJson(list));
    status.textContent = "Saved.";
  };
  const children = [
    element("div", { class: "buttons" },
      textButton("Save as JSON", () => save(false), { class: "button primary" }),
      textButton("Save as Markdown", () => save(true), { class: "button primary" })),
    element("p", { class: "hint" }, "JSON has everything, with all branches and settings. "
      + "Markdown has the branch that is shown. Neither has the key of the server."),
  ];
  if (add) children.push(...importParts(add, status));
  openDialog(title, [...children, status]);
}

function importParts(add, status) {
  const picker = element("input", {
    type: "file",
    id: "import",
    multiple: true,
    accept: ".json,.md,application/json,text/markdown",
  });
  picker.addEventListener("change", async () => {
    for (const file of picker.files) status.textContent = await importFile(file, add);
    picker.value = "";
  });
  return [
    element("h3", {}, "Import"),
    element("label", { for: "import" }, "Files that were saved here, or messages of a request"),
    picker,
  ];
}

async function importFile(file, add) {
  try {
    const text = await file.text();
    const isMarkdown = /\.(md|markdown|txt)$/i.test(file.name);
    const list = isMarkdown ? fromMarkdown(text, Date.now()) : fromJson(text, Date.now());
    await add(list, file.name);
    return `Added ${list.length} from ${file.name}.`;
  } catch (error) {
    return `${file.name}: ${error.message}`;
  }
}
