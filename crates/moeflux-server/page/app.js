// Starts the page and connects its parts.
//
// Each module names only modules above it in this list:
//
//     texts      sse, words, turns, continuation, settings, request, token_list, tasks, model_list,
//                answer, answer_words, portable, markdown_file, keys, math, blocks,
//                machine_history, heat, token_times
//     browser    dom, kept, appearance, notices
//     rendering  markup, highlighting, code_block, prose
//     data       store, server, generation, talk, machine_feed, model_manager
//     views      turn_parts, question_view, tool_cards, thoughts, token_view, answer_view, thread,
//                turn_actions, composer, sidebar, dialogs, settings_dialog, compare_view, meters,
//                rate_chart, time_line, heat_map, machine_view, machine_panel, task_view,
//                offer_view, model_rows, models_dialog, model_choice
//     app
//
// The texts are pure and tested without a browser. Views never touch the store's records of turns;
// they call actions, which change the store, which tells the views of every tab.

import { connectThemeButton } from "./appearance.js";
import { Compare } from "./compare_view.js";
import { Composer } from "./composer.js";
import { askForKey, showExport, showHelp } from "./dialogs.js";
import { textButton } from "./dom.js";
import { keepPreference, preference } from "./kept.js";
import { commandOf } from "./keys.js";
import { MachinePanel } from "./machine_panel.js";
import { ModelChoice } from "./model_choice.js";
import { announce, notify } from "./notices.js";
import { EMPTY_SETTINGS } from "./settings.js";
import { showSettings } from "./settings_dialog.js";
import { Server } from "./server.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { Talk } from "./talk.js";
import { Thread } from "./thread.js";
import { turnActions } from "./turn_actions.js";
import { shownBranch } from "./turns.js";
import { plural } from "./words.js";

const TICK_MS = 500;
const EXAMPLES = [
  "Explain what a hash table is, with a small example in Python.",
  "Compare bicycles, trains and cars in a table: cost, speed, comfort.",
  "Write a short letter that thanks a neighbour for watering my plants.",
];

const byId = (id) => document.getElementById(id);

class App {
  #store;
  #server = new Server(askForKey);
  #talk;
  #thread;
  #composer;
  #sidebar;
  #machine;
  #models;
  #compare;
  #props = null;
  #nAsked = 0;
  #isShowing = false;

  constructor(store) {
    this.#store = store;
    this.#talk = new Talk({
      store,
      server: this.#server,
      startSettings: () => ({ ...EMPTY_SETTINGS, ...preference("settings", {}) }),
      onChange: () => this.#showSoon(),
      onOutcome: (kind, details) => this.#outcome(kind, details),
    });
    this.#compare = new Compare({ talk: this.#talk, props: () => this.#props });
    this.#thread = new Thread({
      scroller: byId("scroller"),
      list: byId("turns"),
      end: byId("to-end"),
      actions: turnActions({
        talk: this.#talk,
        thread: () => this.#thread,
        composer: () => this.#composer,
        compare: () => this.#compare,
        show: () => this.#show(),
        shorten: () => this.#shorten(),
      }),
    });
    this.#composer = new Composer({
      form: byId("composer"),
      drop: byId("talk"),
      onSend: (text, files) => this.#send(text, files),
      onStop: () => this.#talk.stop(),
      countTokens: (text, signal) => this.#server.countTokens(text, signal),
    });
    this.#sidebar = new Sidebar({
      store,
      list: byId("conversations"),
      search: byId("search"),
      actions: {
        open: (id) => this.#open(id),
        startNew: () => this.#startNew(),
        rename: (id, title) => this.#talk.rename(id, title),
        save: (id) => this.#export(id),
        stop: (id) => this.#talk.stopAllOf(id),
      },
    });
    this.#machine = new MachinePanel({
      server: this.#server,
      panel: byId("machine"),
      button: byId("show-machine"),
      covered: [byId("talk"), byId("sidebar")],
    });
    this.#models = new ModelChoice({
      server: this.#server,
      button: byId("model"),
      start: byId("choose"),
      line: byId("task-line"),
      onChanged: () => this.#askAboutServer(),
      onReady: () => this.#composer.focus(),
    });
    this.#connectButtons();
    document.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("popstate", () => this.#openFromAddress());
    addEventListener("unhandledrejection", ({ reason }) => this.#failed(reason));
    // The server may have been started anew with another model meanwhile.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#askAboutServer();
    });
    setInterval(() => this.#thread.tick(), TICK_MS);
  }

  async start() {
    this.#showExamples();
    await this.#openFromAddress();
    this.#composer.focus();
    await this.#sidebar.refresh();
    this.#store.sweep(Date.now());
    await this.#askAboutServer();
  }

  #connectButtons() {
    connectThemeButton(byId("theme"));
    byId("new").addEventListener("click", () => this.#startNew());
    byId("toggle-sidebar").addEventListener("click", () => this.#toggleSidebar());
    byId("shade").addEventListener("click", () => this.#toggleSidebar());
    byId("settings").addEventListener("click", () => this.#settings());
    byId("help").addEventListener("click", () => this.#help());
    byId("export-all").addEventListener("click", () => this.#export(null));
    const isShown = preference("sidebar", true) && !isNarrow();
    document.body.classList.toggle("no-sidebar", !isShown);
    this.#showToggle();
  }

  /** Returns whether it was sent: what was typed must not be lost otherwise. */
  #send(text, files) {
    if (!this.#talk.isReady()) return false;
    this.#talk.send(text, files);
    this.#thread.toEnd();
    return true;
  }

  async #open(id) {
    if (!(await this.#talk.open(id))) {
      notify("This conversation is not here any more.");
      this.#startNew();
      return;
    }
    history.replaceState(null, "", `#${id}`);
    if (isNarrow()) this.#setSidebar(false);
    else this.#composer.focus();
  }

  #startNew() {
    this.#talk.startNew();
    history.replaceState(null, "", location.pathname);
    if (isNarrow()) this.#setSidebar(false);
    this.#composer.focus();
  }

  async #openFromAddress() {
    const id = location.hash.slice(1);
    if (id && id !== this.#talk.conversation.id) await this.#talk.open(id);
  }

  /** Shows once per frame, however many parts of answers come; hidden pages need no frames. */
  #showSoon() {
    if (this.#isShowing) return;
    this.#isShowing = true;
    const show = () => {
      this.#isShowing = false;
      this.#show();
    };
    if (document.hidden) setTimeout(show, TICK_MS);
    else requestAnimationFrame(show);
  }

  #show() {
    const { conversation, isKept } = this.#talk;
    const branch = this.#talk.branch();
    this.#thread.update(conversation, branch);
    this.#compare.update();
    byId("welcome").hidden = branch.length > 0;
    byId("talk").classList.toggle("empty", branch.length === 0);
    byId("title").textContent = conversation.title || "New conversation";
    document.title = conversation.title ? `${conversation.title} · moeflux` : "moeflux";
    this.#sidebar.setOpen(isKept ? conversation.id : null);
    if (isKept && location.hash !== `#${conversation.id}`) {
      history.replaceState(null, "", `#${conversation.id}`);
    }
    this.#composer.open(isKept ? conversation.id : "new");
    this.#composer.setRunning(branch.at(-1)?.turn.state === "running");
    const usage = branch.findLast(({ turn }) => turn.usage)?.turn.usage;
    this.#composer.setContext(usage ? usage.prompt + usage.answer : 0, this.#nContext());
  }

  #nContext() {
    return this.#props?.max_model_len ?? this.#props?.default_generation_settings?.n_ctx ?? 0;
  }

  #failed(error) {
    if (error?.name === "QuotaExceededError") {
      notify("The browser has no room for more. Export conversations, and delete some.");
    } else {
      notify(`Something went wrong: ${error?.message ?? error}`);
    }
  }

  #outcome(kind, details) {
    const isOther = details?.model && details.model !== this.#props?.model;
    if (kind === "ended" && (!this.#props || isOther)) this.#askAboutServer();
    if (kind === "problems") {
      notify("The settings have a mistake; it is marked.");
      this.#settings();
    } else if (kind === "problem") {
      notify(`The answer could not be computed again: ${details}`);
    } else if (kind === "unkept") {
      this.#failed(details);
    } else if (kind === "differs") {
      notify("The server gave another answer than the kept part (another version or other "
        + "settings of the server). Both are here, as versions.");
    } else if (details.state === "done") {
      const n = details.usage?.answer ?? 0;
      announce(n > 0 ? `The answer is complete: ${plural(n, "token")}.` : "The answer is here.");
    } else {
      announce(details.error?.message ?? "The answer has stopped.");
    }
  }

  async #shorten() {
    const isShorter = await this.#talk.leaveOutOldest(this.#nContext());
    if (isShorter) return;
    notify("The last message alone is too long. Shorten it, or take files away.");
    this.#thread.editLastQuestion();
  }

  #settings() {
    showSettings({
      settings: this.#talk.conversation.settings,
      props: this.#props,
      onChange: (settings) => this.#talk.changeSettings(settings),
    });
  }

  #help() {
    const parts = [["machine", this.#machine], ["models", this.#models]];
    const missing = parts.filter(([, { isThere }]) => !isThere);
    showHelp(this.#props?.version ?? "", missing.map(([name]) => name));
  }

  #export(id) {
    const readOne = async (conversation, branchOnly) => {
      const turns = await this.#store.turns(conversation.id);
      const branch = shownBranch(turns, conversation.chosen).map(({ turn }) => turn);
      return { conversation, turns: branchOnly ? branch : turns };
    };
    const read = async (branchOnly) => {
      const all = id ? [await this.#store.conversation(id)] : await this.#store.conversations();
      return Promise.all(all.map((conversation) => readOne(conversation, branchOnly)));
    };
    const add = async (list, fileName) => {
      for (const { conversation, turns } of list) {
        const title = conversation.title || fileName;
        await this.#store.add({ ...conversation, title }, turns);
      }
      if (list.length === 1) this.#open(list[0].conversation.id);
    };
    const title = id ? "Export this conversation" : "Export and import";
    const name = id ? "conversation" : "conversations";
    showExport({ title, name, read, add: id ? null : add });
  }

  #toggleSidebar() {
    this.#setSidebar(document.body.classList.contains("no-sidebar"));
  }

  #setSidebar(isShown) {
    document.body.classList.toggle("no-sidebar", !isShown);
    if (!isNarrow()) keepPreference("sidebar", isShown);
    this.#showToggle();
  }

  #showToggle() {
    const isShown = !document.body.classList.contains("no-sidebar");
    byId("toggle-sidebar").setAttribute("aria-expanded", String(isShown));
  }

  #key(event) {
    if (event.key === "Escape" && !event.shiftKey && !document.querySelector("dialog[open]")) {
      if (this.#machine.isOver || this.#machine.has(event.target)) this.#machine.close();
      else if (this.#talk.running()) this.#talk.stop();
      else if (isNarrow()) this.#setSidebar(false);
      return;
    }
    const isTyping = event.target.closest("input, textarea, select") !== null;
    const context = { isTyping, hasSingleKeys: preference("singleKeys", true) };
    const command = commandOf(event, context);
    if (!command || document.querySelector("dialog[open]")) return;
    if (command === "edit" && isTyping && !this.#composer.isEmpty) return;
    event.preventDefault();
    this.#run(command);
  }

  #run(command) {
    const last = this.#talk.branch().at(-1)?.turn;
    const commands = {
      new: () => this.#startNew(),
      search: () => {
        this.#setSidebar(true);
        byId("search").focus();
      },
      sidebar: () => this.#toggleSidebar(),
      settings: () => this.#settings(),
      write: () => this.#composer.focus(),
      regenerate: () => {
        if (last?.role === "assistant" && last.state !== "running") this.#talk.regenerate(last);
      },
      edit: () => this.#thread.editLastQuestion(),
      end: () => this.#thread.toEnd(),
      next: () => this.#sidebar.move(1),
      previous: () => this.#sidebar.move(-1),
      machine: () => this.#machine.toggle(),
      models: () => this.#models.open(),
      help: () => this.#help(),
    };
    commands[command]();
  }

  #showExamples() {
    byId("examples").replaceChildren(...EXAMPLES.map((text) =>
      textButton(text, () => this.#send(text, []), { class: "example" })));
  }

  /** Asks until the server says what it serves: it may still be loading the model. */
  async #askAboutServer() {
    this.#nAsked += 1;
    const asked = this.#nAsked;
    // What was asked before the model was changed must not be shown after it.
    const isOld = () => asked !== this.#nAsked;
    const props = await this.#server.propsOnceLoaded((error) => {
      if (isOld()) return false;
      byId("about").textContent = error.message;
      this.#models.find();
      return true;
    });
    if (!props || isOld()) return;
    this.#props = props;
    const { model, build, version } = props;
    this.#models.setModel(model);
    byId("welcome-model").textContent = model;
    const room = plural(this.#nContext(), "token");
    byId("about").textContent = `Served by ${build ?? `moeflux ${version}`}, with room for ${room} `
      + "in a conversation. Conversations are kept in this browser only.";
    this.#show();
    await Promise.all([this.#machine.find(), this.#models.find()]);
  }
}

function isNarrow() {
  return matchMedia("(max-width: 760px)").matches;
}

try {
  await new App(await Store.open()).start();
} catch (error) {
  byId("about").textContent = `The page could not start: ${error.message}`;
  throw error;
}
