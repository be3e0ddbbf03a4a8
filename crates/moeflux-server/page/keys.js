// Says which command a key means.
//
// Invariant: keys without a modifier act only outside of text fields, and only if a person has not
// switched them off, so that no letter that somebody types is lost.

/** In the order of the list under `?`. `single` keys have no modifier. */
export const COMMANDS = [
  { name: "send", keys: "Enter", label: "Send the message (in the message field)", fixed: true },
  { name: "break", keys: "Shift+Enter", label: "Begin a new line", fixed: true },
  { name: "stop", keys: "Escape", label: "Stop the answer, or close what is open", fixed: true },
  { name: "new", keys: "Ctrl+Shift+O", single: "n", label: "New conversation" },
  { name: "search", keys: "Ctrl+K", single: "/", label: "Search conversations" },
  { name: "sidebar", keys: "Ctrl+B", single: "b", label: "Show or hide the conversations" },
  { name: "machine", keys: "Ctrl+I", single: "i", label: "Show or hide the machine" },
  { name: "models", keys: "Ctrl+Shift+L", single: "l", label: "Choose a model" },
  { name: "settings", keys: "Ctrl+,", single: "s", label: "Settings of this conversation" },
  { name: "write", keys: "Shift+Escape", single: "m", label: "Go to the message field" },
  { name: "regenerate", keys: "Ctrl+Shift+Enter", single: "r", label: "Answer again" },
  { name: "edit", keys: "Ctrl+ArrowUp", single: "e", label: "Edit the last message" },
  { name: "end", keys: "Ctrl+End", single: "g", label: "Go to the end" },
  { name: "next", keys: "Alt+ArrowDown", single: "j", label: "Next conversation" },
  { name: "previous", keys: "Alt+ArrowUp", single: "k", label: "Previous conversation" },
  { name: "help", keys: "Ctrl+/", single: "?", label: "This list" },
];

/** The name of the command, or null. `context` says where the focus is and what is switched on. */
export function commandOf(event, { isTyping, hasSingleKeys }) {
  if (event.isComposing) return null;
  const pressed = pressedKeys(event);
  const found = COMMANDS.find(({ keys, fixed }) => !fixed && keys === pressed);
  if (found) return found.name;
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (isTyping || !hasSingleKeys || !isPlain) return null;
  return COMMANDS.find(({ single }) => single === event.key)?.name ?? null;
}

function pressedKeys(event) {
  const key = event.key.length === 1 ? event.key.toUpperCase() : event.key;
  const modifiers = [];
  // On a Mac, the command key does what Ctrl does elsewhere.
  if (event.ctrlKey || event.metaKey) modifiers.push("Ctrl");
  if (event.altKey) modifiers.push("Alt");
  if (event.shiftKey && (event.key.length > 1 || /[A-Z]/.test(key))) modifiers.push("Shift");
  return [...modifiers, key].join("+");
}
