// Keeps conversations in the browser's database, for all tabs of this origin.
//
// A conversation and each turn are records of their own. Invariant: a record is changed by reading
// and writing it in one transaction, so that two tabs never undo each other's changes; other tabs
// then hear which conversation or turn changed. It also answers which tab gives an answer now.

const NAME = "moeflux";
const VERSION = 1;
// How long other tabs have to say that they are still receiving an answer.
const REPLY_MS = 400;
// Deleted conversations can be brought back until they have been deleted for this long.
const DELETED_KEPT_MS = 60_000;

export class Store {
  #database;
  #channel = new BroadcastChannel("moeflux");
  #listeners = new Set();
  /** Turns that this tab receives, with what stops them. */
  #receiving = new Map();
  #questions = new Map();

  constructor(database) {
    this.#database = database;
    this.#channel.addEventListener("message", ({ data }) => this.#hear(data));
  }

  static async open() {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      const turns = request.result.createObjectStore("turns", { keyPath: "id" });
      turns.createIndex("conversation", "conversation");
    };
    const database = await done(request);
    // A newer page in another tab must be able to change the tables.
    database.onversionchange = () => database.close();
    return new Store(database);
  }

  /** Calls the listener with `{conversation, turn}` (an id, or none) after each change. */
  listen(listener) {
    this.#listeners.add(listener);
  }

  async conversations() {
    const all = await done(this.#table("conversations").getAll());
    return all.filter((conversation) => !conversation.deleted);
  }

  async conversation(id) {
    const found = await done(this.#table("conversations").get(id));
    return found && !found.deleted ? found : null;
  }

  async turns(conversationId) {
    return done(this.#table("turns").index("conversation").getAll(conversationId));
  }

  async turn(id) {
    return (await done(this.#table("turns").get(id))) ?? null;
  }

  async add(conversation, turns = []) {
    const transaction = this.#database.transaction(["conversations", "turns"], "readwrite");
    transaction.objectStore("conversations").add(conversation);
    turns.forEach((turn) => transaction.objectStore("turns").add(turn));
    await finished(transaction);
    this.#tell({ conversation: conversation.id });
  }

  async addTurn(turn) {
    await done(this.#table("turns", "readwrite").add(turn));
    this.#tell({ conversation: turn.conversation, turn: turn.id });
  }

  /** Changes a conversation by a function from its record to new fields. */
  async changeConversation(id, change) {
    const changed = await this.#change("conversations", id, change);
    this.#tell({ conversation: id });
    return changed;
  }

  async changeTurn(id, change) {
    const changed = await this.#change("turns", id, change);
    if (changed) this.#tell({ conversation: changed.conversation, turn: id });
    return changed;
  }

  async deleteConversation(id, nowMs) {
    await this.changeConversation(id, () => ({ deleted: nowMs }));
  }

  async restoreConversation(id) {
    await this.changeConversation(id, () => ({ deleted: null }));
  }

  /** Removes what was deleted a while ago. */
  async sweep(nowMs) {
    const all = await done(this.#table("conversations").getAll());
    for (const { id, deleted } of all) {
      if (deleted && deleted < nowMs - DELETED_KEPT_MS) await this.#remove(id);
    }
  }

  async #remove(id) {
    const transaction = this.#database.transaction(["conversations", "turns"], "readwrite");
    transaction.objectStore("conversations").delete(id);
    const turns = transaction.objectStore("turns");
    const keys = await done(turns.index("conversation").getAllKeys(id));
    keys.forEach((key) => turns.delete(key));
    await finished(transaction);
  }

  /** The ids of conversations with a turn whose words have the text; `wordsOf` reads a turn. */
  async search(text, wordsOf, signal) {
    const wanted = text.toLowerCase();
    const found = new Set();
    const request = this.#table("turns").openCursor();
    return new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor || signal.aborted) return resolve(found);
        const { conversation } = cursor.value;
        if (!found.has(conversation) && wordsOf(cursor.value).toLowerCase().includes(wanted)) {
          found.add(conversation);
        }
        return cursor.continue();
      };
    });
  }

  /** Says that this tab receives a turn, and how others stop that; null when it has ended. */
  setReceiving(turnId, stop) {
    if (stop) this.#receiving.set(turnId, stop);
    else this.#receiving.delete(turnId);
  }

  /** Stops an answer in whichever tab receives it. */
  stopReceiving(turnId) {
    const stop = this.#receiving.get(turnId);
    if (stop) stop();
    else this.#channel.postMessage({ stops: turnId });
  }

  /** Whether this tab or another one receives the answer. */
  async isReceived(turnId) {
    if (this.#receiving.has(turnId)) return true;
    const reply = new Promise((resolve) => {
      this.#questions.set(turnId, resolve);
      setTimeout(() => resolve(false), REPLY_MS);
    });
    this.#channel.postMessage({ asksFor: turnId });
    const isReceived = await reply;
    this.#questions.delete(turnId);
    return isReceived;
  }

  #hear(message) {
    if (message.asksFor) {
      if (this.#receiving.has(message.asksFor)) {
        this.#channel.postMessage({ receives: message.asksFor });
      }
    } else if (message.stops) {
      this.#receiving.get(message.stops)?.();
    } else if (message.receives) {
      this.#questions.get(message.receives)?.(true);
    } else {
      this.#listeners.forEach((listener) => listener({ ...message, isOwn: false }));
    }
  }

  #tell(message) {
    this.#channel.postMessage(message);
    this.#listeners.forEach((listener) => listener({ ...message, isOwn: true }));
  }

  #table(name, mode = "readonly") {
    return this.#database.transaction(name, mode).objectStore(name);
  }

  async #change(name, id, change) {
    const table = this.#table(name, "readwrite");
    const record = await done(table.get(id));
    if (!record) return null;
    const changed = { ...record, ...change(record) };
    await done(table.put(changed));
    return changed;
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}
