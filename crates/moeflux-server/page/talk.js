// The conversation that is open, and what a person can do to it.
//
// It changes the store, starts answers and tells its listener; it knows no element. Answers go on
// while another conversation is open. Invariant: a person never overwrites a turn that exists: an
// edit, another answer and other results are new turns beside the old ones.

import { WITH_PROBABILITIES } from "./continuation.js";
import { Generation } from "./generation.js";
import { newConversation } from "./portable.js";
import { drawSeed, messagesOf } from "./request.js";
import { readSettings } from "./settings.js";
import { textBefore } from "./token_list.js";
import { choose, lineage, newId, shownBranch, titleFrom } from "./turns.js";

// A shortened conversation leaves this share of the context for the answer.
const ANSWER_SHARE = 0.25;

export class Talk {
  conversation;
  turns = [];
  /** Whether the conversation is in the store; a new one is, once something was said. */
  isKept = false;
  #store;
  #server;
  #startSettings;
  #onChange;
  #onOutcome;
  #generations = new Map();

  /**
   * `onChange` is called when anything shown may have changed, and `onOutcome(kind, details)` when
   * an answer ended ("ended"), differs from its kept part ("differs"), could not be computed again
   * ("problem"), could not be kept ("unkept"), or cannot be asked for ("problems").
   */
  constructor({ store, server, startSettings, onChange, onOutcome }) {
    this.#store = store;
    this.#server = server;
    this.#startSettings = startSettings;
    this.#onChange = onChange;
    this.#onOutcome = onOutcome;
    store.listen((message) => this.#hear(message));
    this.startNew();
  }

  startNew() {
    this.conversation = newConversation(Date.now(), { settings: this.#startSettings() });
    this.turns = [];
    this.isKept = false;
    this.#onChange();
  }

  /** Opens a conversation of the store; returns whether it is there. */
  async open(id) {
    const [conversation, turns] = await Promise.all([
      this.#store.conversation(id),
      this.#store.turns(id),
    ]);
    if (!conversation) return false;
    this.conversation = conversation;
    this.turns = turns.map((turn) => this.#generations.get(turn.id)?.turn ?? turn);
    this.isKept = true;
    this.#onChange();
    await this.#endAbandoned();
    return true;
  }

  /** The shown branch; an answer that comes has its newest text. */
  branch() {
    return shownBranch(this.turns, this.conversation.chosen)
      .map((entry) => ({ ...entry, ...this.#newest(entry.turn) }));
  }

  /** A turn that may be outside of the shown branch, as `{turn, generation}`, or null. */
  entry(id) {
    const turn = this.turns.find((it) => it.id === id);
    return turn ? this.#newest(turn) : null;
  }

  #newest(turn) {
    const generation = this.#generations.get(turn.id) ?? null;
    return { turn: generation?.turn ?? turn, generation };
  }

  /** The answer that comes at the end of the shown branch, or null. */
  running() {
    const last = this.branch().at(-1)?.turn;
    return last?.state === "running" ? last : null;
  }

  /** Stops the answer at the end of the shown branch, in whichever tab it comes. */
  stop() {
    const last = this.running();
    if (last) this.stopAnswer(last.id);
  }

  stopAnswer(id) {
    this.#store.stopReceiving(id);
  }

  /** Stops what comes for a conversation, because it was deleted. */
  stopAllOf(conversationId) {
    for (const generation of this.#generations.values()) {
      if (generation.turn.conversation === conversationId) generation.stop();
    }
  }

  /** Whether an answer can be asked for; says otherwise what is wrong with the settings. */
  isReady() {
    return this.#fields() !== null;
  }

  async send(text, files) {
    const parent = this.branch().at(-1)?.turn ?? null;
    await this.#ask({ role: "user", text, files }, parent?.id ?? null);
  }

  /** Puts another question in the place of this one. */
  async editQuestion(turn, text, files) {
    await this.#ask({ role: "user", text, files }, turn.parent);
  }

  /** Puts an answer that a person wrote beside this one. */
  async editAnswer(turn, text) {
    const { thoughts, calls, model, parent } = turn;
    const edited = { role: "assistant", text, thoughts, calls, model, state: "done", edited: true };
    await this.#addTurn(edited, parent);
  }

  async giveResults(turn, results) {
    await this.#ask({ role: "tool", results }, turn.id);
  }

  async regenerate(turn) {
    await this.#answer(turn.parent);
  }

  /** Asks twice for an answer to a turn, with settings of each, and returns the ids of both. */
  async compare(parent, both) {
    const turns = [];
    for (const settings of both) turns.push(await this.#begin(parent, settings));
    turns.forEach((turn) => this.#generate(turn, "failed"));
    return turns.map(({ id }) => id);
  }

  /** Asks for another answer that has the text of this one before a token, and then a choice. */
  async continueFrom({ turn, index, choice }) {
    const { tokens, thoughts, seed, asked, parent } = turn;
    const from = { text: textBefore(tokens, index), token: choice.text };
    const token = { text: choice.text, logprob: choice.logprob, top: tokens[index].top };
    const started = await this.#addTurn({
      role: "assistant",
      text: from.text + from.token,
      thoughts,
      calls: [],
      state: "running",
      seed: seed ?? drawSeed(),
      asked: { ...asked, from },
      tokens: [...tokens.slice(0, index), token],
    }, parent);
    await this.#generate(started, "failed");
  }

  /** Asks for the same answer again, because its probabilities are not there. */
  async score(turn) {
    const fields = { ...turn.asked.fields, ...WITH_PROBABILITIES };
    await this.#again(turn, { ...turn.asked, fields });
  }

  /** Asks for the same answer again, of which a part was kept, to its end. */
  async resume(turn) {
    const asked = { ...turn.asked, fields: { ...turn.asked.fields } };
    // An answer that reached its limit goes on to the end of the context.
    if (turn.state === "length") delete asked.fields.max_tokens;
    await this.#again(turn, asked);
  }

  async #again(turn, asked) {
    const fields = { state: "running", error: null, asked };
    const changed = await this.#store.changeTurn(turn.id, () => fields);
    if (!changed) return;
    this.#putTurn(changed);
    await this.#generate(changed, turn.state);
  }

  async pick(turnId) {
    const turn = this.turns.find(({ id }) => id === turnId);
    await this.#change((conversation) => ({ chosen: choose(conversation.chosen, turn) }));
  }

  async rename(id, title) {
    await this.#store.changeConversation(id, () => ({ title, isNamed: true }));
  }

  async changeSettings(settings) {
    if (this.isKept) await this.#change(() => ({ settings }));
    else this.conversation = { ...this.conversation, settings };
    this.#onChange();
  }

  /** Sends the whole conversation again. */
  async includeAll() {
    await this.#change(() => ({ firstSent: null }));
  }

  /** Leaves out the oldest turns until the rest fits; returns whether that is possible. */
  async leaveOutOldest(nContext) {
    const branch = this.branch().map((entry) => entry.turn);
    const answer = branch.at(-1).role === "assistant" ? branch.at(-1) : null;
    const sent = answer ? branch.slice(0, -1) : branch;
    const questions = sent.filter((turn) => turn.role === "user");
    const fits = async (index) => {
      const { system } = this.conversation.settings;
      const messages = messagesOf(sent, system, questions[index].id);
      try {
        const n = await this.#server.countTokens(messages);
        return n <= nContext * (1 - ANSWER_SHARE);
      } catch (error) {
        if (error.kind === "length") return false;
        throw error;
      }
    };
    // Fewer turns never need more tokens, so that half of the places need not be tried.
    let low = questions.findIndex(({ id }) => id === this.conversation.firstSent) + 1 || 1;
    let high = questions.length - 1;
    if (high < low || !(await fits(high))) return false;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (await fits(middle)) high = middle;
      else low = middle + 1;
    }
    await this.#change(() => ({ firstSent: questions[low].id }));
    if (answer) await this.regenerate(answer);
    return true;
  }

  async #ask(turn, parent) {
    const added = await this.#addTurn(turn, parent);
    await this.#answer(added.id);
  }

  /** The fields of a request, or null if the settings have a mistake. */
  #fields() {
    const { fields, problems } = readSettings(this.conversation.settings);
    if (Object.keys(problems).length === 0) return fields;
    this.#onOutcome("problems", problems);
    return null;
  }

  async #answer(parent) {
    if (!this.#fields()) return;
    const turn = await this.#begin(parent, this.conversation.settings);
    await this.#generate(turn, "failed");
  }

  /** Adds an answer that is still empty. The settings must have no mistake. */
  async #begin(parent, settings) {
    const { fields } = readSettings(settings);
    const { seed, ...others } = fields;
    // A call that a person demands is the first one; with its result the model may answer.
    const isResult = this.turns.find(({ id }) => id === parent)?.role === "tool";
    if (isResult && others.tool_choice === "required") delete others.tool_choice;
    return this.#addTurn({
      role: "assistant",
      text: "",
      thoughts: "",
      calls: [],
      state: "running",
      seed: seed ?? drawSeed(),
      asked: {
        fields: others,
        system: settings.system,
        firstSent: this.conversation.firstSent,
      },
    }, parent);
  }

  async #generate(turn, stateBefore) {
    const before = lineage(this.turns, turn.parent);
    const { system, firstSent } = turn.asked;
    const generation = new Generation({
      turn,
      messages: messagesOf(before, system, firstSent),
      stateBefore,
      store: this.#store,
      onChange: () => this.#onChange(),
      onUnkept: (error) => this.#onOutcome("unkept", error),
    });
    this.#generations.set(turn.id, generation);
    this.#onChange();
    const other = await generation.run(this.#server);
    this.#generations.delete(turn.id);
    this.#putTurn(generation.turn);
    if (other) {
      const { role, parent, conversation, seed, asked } = turn;
      const added = { role, parent, conversation, seed, asked, ...other, state: "cut" };
      await this.#addTurnTo(conversation, { ...added, error: null });
    }
    if (generation.problem) this.#onOutcome("problem", generation.problem);
    else this.#onOutcome(other ? "differs" : "ended", generation.turn);
    this.#onChange();
  }

  async #addTurn(turn, parent) {
    if (!this.isKept) await this.#keep(turn);
    return this.#addTurnTo(this.conversation.id, { ...turn, parent });
  }

  async #addTurnTo(conversationId, turn) {
    // A turn is younger than its versions even if the clock was set back.
    const youngest = Math.max(0, ...this.turns.map(({ created }) => created));
    const created = Math.max(Date.now(), youngest + 1);
    const added = { ...turn, id: newId(), conversation: conversationId, created };
    await this.#store.addTurn(added);
    this.#putTurn(added);
    const changed = await this.#store.changeConversation(conversationId, ({ chosen }) => ({
      chosen: choose(chosen, added),
      updated: Date.now(),
    }));
    this.#putConversation(changed);
    return added;
  }

  async #keep(firstTurn) {
    const title = this.conversation.title || titleFrom(firstTurn);
    this.conversation = { ...this.conversation, title };
    this.isKept = true;
    await this.#store.add(this.conversation);
  }

  async #change(change) {
    const changed = await this.#store.changeConversation(this.conversation.id, change);
    this.#putConversation(changed);
  }

  #putConversation(changed) {
    if (changed?.id !== this.conversation.id) return;
    this.conversation = changed;
    this.#onChange();
  }

  #putTurn(turn) {
    if (turn.conversation !== this.conversation.id) return;
    const others = this.turns.filter(({ id }) => id !== turn.id);
    this.turns = [...others, turn];
    this.#onChange();
  }

  /** Another tab, or another part of this one, changed something. */
  async #hear({ conversation, turn, isOwn }) {
    if (isOwn && turn) return;
    if (conversation !== this.conversation.id || !this.isKept) return;
    if (turn && !this.#generations.has(turn)) {
      const changed = await this.#store.turn(turn);
      if (changed) this.#putTurn(changed);
    } else if (!turn) {
      const changed = await this.#store.conversation(conversation);
      if (changed) this.#putConversation(changed);
      else if (conversation === this.conversation.id) this.startNew();
    }
  }

  /** Answers that were coming when their page was closed are offered to be continued. */
  async #endAbandoned() {
    const open = this.turns.filter(({ id, state }) => state === "running"
      && !this.#generations.has(id));
    await Promise.all(open.map(async ({ id }) => {
      if (await this.#store.isReceived(id)) return;
      const changed = await this.#store.changeTurn(id, (turn) => {
        if (turn.state !== "running") return {};
        const hasText = turn.text || turn.thoughts || turn.calls.length > 0;
        const message = "The page was closed before the answer ended.";
        return { state: hasText ? "cut" : "failed", error: { kind: "cut", message } };
      });
      if (changed) this.#putTurn(changed);
    }));
  }
}
