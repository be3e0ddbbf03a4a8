// Small values that the browser keeps for the page: preferences, drafts, and the key of the server.
//
// The key is in sessionStorage only, which ends with the tab. A browser that keeps nothing gives
// the default. Invariant: a value that cannot be read is the default, never an error.

export function preference(name, otherwise) {
  try {
    const text = localStorage.getItem(name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function keepPreference(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // A preference that is not kept holds until the page is closed.
  }
}

export function serverKey() {
  return inSession("key");
}

export function keepServerKey(key) {
  keepInSession("key", key);
}

/** What was typed into a conversation and not sent; a reload must not lose it. */
export function draft(conversationId) {
  return inSession(`draft ${conversationId}`);
}

export function keepDraft(conversationId, text) {
  keepInSession(`draft ${conversationId}`, text);
}

/** The download that a person wants to load when it is here; a reload must not forget it. */
export function loadAfter() {
  return inSession("load after");
}

export function keepLoadAfter(download) {
  keepInSession("load after", download);
}

function inSession(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function keepInSession(name, value) {
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // See keepPreference.
  }
}
