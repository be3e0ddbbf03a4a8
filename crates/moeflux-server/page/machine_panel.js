// The panel beside the conversation that shows the machine; on a phone it covers the conversation.
//
// Invariant: the server is asked only while the panel is open and the tab is in front. Where the
// server is too old to know the machine, there is neither button nor panel.

import { iconButton } from "./dom.js";
import { keepPreference, preference } from "./kept.js";
import { MachineFeed } from "./machine_feed.js";
import { MachineView } from "./machine_view.js";

const TICK_MS = 500;
const NARROW = "(max-width: 760px)";

export class MachinePanel {
  #server;
  #panel;
  #button;
  #covered;
  #view = new MachineView();
  #feed;
  #narrow = matchMedia(NARROW);
  #timer = 0;
  #isOpen = false;

  /** `covered` are the elements that a panel on a phone covers. */
  constructor({ server, panel, button, covered }) {
    this.#server = server;
    this.#panel = panel;
    this.#button = button;
    this.#covered = covered;
    this.#feed = new MachineFeed({
      server,
      onState: (state, isAfterGap) => this.#view.push(state, isAfterGap, performance.now()),
      onExperts: (experts) => this.#view.setExperts(experts),
      onTrouble: (error) => this.#failed(error),
    });
    panel.querySelector("header").append(iconButton("close", "Close the machine view",
      () => this.close()));
    panel.append(this.#view.element);
    button.addEventListener("click", () => this.toggle());
    document.addEventListener("visibilitychange", () => this.#watch());
    this.#narrow.addEventListener("change", () => this.#cover());
    new IntersectionObserver((entries) => this.#feed.setLayersSeen(entries.at(-1).isIntersecting),
      { root: panel }).observe(this.#view.layers);
  }

  get isThere() {
    return !this.#button.hidden;
  }

  get isOver() {
    return this.#isOpen && this.#narrow.matches;
  }

  /** Asks the server whether it knows the machine; opens the panel if it was open last time. */
  async find() {
    const isThere = await this.#server.hasMachine();
    const isNew = isThere && this.#button.hidden;
    this.#button.hidden = !isThere;
    if (!isThere) this.#set(false);
    else if (isNew && preference("machine", false) && !this.#narrow.matches) this.#set(true);
  }

  toggle() {
    if (this.#isOpen) this.close();
    else if (this.isThere) this.#open();
  }

  close() {
    const hadFocus = this.#panel.contains(document.activeElement);
    keepPreference("machine", false);
    this.#set(false);
    if (hadFocus) this.#button.focus();
  }

  has(place) {
    return this.#isOpen && this.#panel.contains(place);
  }

  #open() {
    keepPreference("machine", true);
    this.#set(true);
    if (this.#narrow.matches) this.#panel.querySelector("button").focus();
  }

  #set(isOpen) {
    this.#isOpen = isOpen;
    this.#panel.hidden = !isOpen;
    document.body.classList.toggle("with-machine", isOpen);
    this.#button.setAttribute("aria-expanded", String(isOpen));
    this.#cover();
    this.#watch();
  }

  /** What is covered can be neither clicked nor reached by keys. */
  #cover() {
    this.#covered.forEach((it) => it.toggleAttribute("inert", this.isOver));
  }

  #watch() {
    const isWatching = this.#isOpen && !document.hidden;
    clearInterval(this.#timer);
    if (!isWatching) return this.#feed.close();
    this.#timer = setInterval(() => this.#view.show(performance.now()), TICK_MS);
    return this.#feed.open();
  }

  #failed(error) {
    this.#view.setTrouble(error.message);
    if (error.kind !== "missing") return;
    this.#button.hidden = true;
    this.#set(false);
  }
}
