// Shows the turns of the open conversation, and follows the end while a person is there.
//
// Invariant: the page scrolls by itself only if the end was in view before the text grew, or if a
// person sent something. Views of turns that stay are kept, with what is open or edited in them.

import { AnswerView } from "./answer_view.js";
import { element, textButton } from "./dom.js";
import { QuestionView } from "./question_view.js";

// Nearer to the end than this counts as there.
const END_PIXELS = 48;

export class Thread {
  #scroller;
  #list;
  #end;
  #actions;
  #views = new Map();
  #isFollowing = true;
  #lastTop = 0;
  #conversationId = null;
  #entries = [];

  constructor({ scroller, list, end, actions }) {
    this.#scroller = scroller;
    this.#list = list;
    this.#end = end;
    this.#actions = actions;
    scroller.addEventListener("scroll", () => this.#notice(), { passive: true });
    end.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.#follow()).observe(list);
    new ResizeObserver(() => this.#follow()).observe(scroller);
  }

  update(conversation, branch) {
    if (conversation.id !== this.#conversationId) {
      this.#conversationId = conversation.id;
      this.#isFollowing = true;
      this.#views.clear();
      this.#list.replaceChildren();
    }
    this.#entries = branch.filter(({ turn }) => turn.role !== "tool");
    const wanted = branch.flatMap((entry, index) => this.#elementsOf(entry, branch[index + 1]));
    const cut = branch.findIndex(({ turn }) => turn.id === conversation.firstSent);
    if (cut > 0) wanted.splice(wanted.indexOf(this.#element(branch[cut].turn)), 0, this.#cutLine());
    this.#place(wanted);
  }

  #elementsOf(entry, next) {
    if (entry.turn.role === "tool") return [];
    const view = this.#view(entry.turn);
    view.update(entry, next?.turn.role === "tool" ? next : null);
    return [view.element];
  }

  #view(turn) {
    if (!this.#views.has(turn.id)) {
      const View = turn.role === "user" ? QuestionView : AnswerView;
      this.#views.set(turn.id, new View(this.#actions));
    }
    return this.#views.get(turn.id);
  }

  #element(turn) {
    return this.#views.get(turn.id)?.element;
  }

  #cutLine() {
    const text = "The model does not get the turns above.";
    const undo = textButton("Include them", () => this.#actions.includeAll(), {
      class: "button quiet",
    });
    return element("div", { class: "cut-line" }, element("span", {}, text), undo);
  }

  /** Puts the elements into the list, and moves none that is in its place already. */
  #place(wanted) {
    const staying = new Set(wanted);
    for (const child of [...this.#list.children]) if (!staying.has(child)) child.remove();
    wanted.forEach((item, index) => {
      const there = this.#list.children[index];
      if (there !== item) this.#list.insertBefore(item, there ?? null);
    });
    for (const [id, view] of this.#views) if (!staying.has(view.element)) this.#views.delete(id);
  }

  /** Shows times that pass, in answers that come. */
  tick() {
    this.#entries.filter(({ turn }) => turn.state === "running")
      .forEach(({ turn }) => this.#views.get(turn.id)?.tick());
  }

  editLastQuestion() {
    const last = this.#entries.findLast(({ turn }) => turn.role === "user");
    if (last) this.#views.get(last.turn.id).edit();
  }

  /** Puts the focus on the arrows of the version that was picked. */
  focusVersion(turnId, step) {
    const foot = this.#views.get(turnId)?.element.querySelector(".turn-foot");
    const arrows = foot?.querySelectorAll(".versions button");
    const wanted = step < 0 ? arrows?.[0] : arrows?.[1];
    const other = step < 0 ? arrows?.[1] : arrows?.[0];
    (wanted?.disabled ? other : wanted)?.focus();
  }

  /** Takes the focus from a view that goes away. */
  focus() {
    this.#scroller.focus({ preventScroll: true });
  }

  toEnd() {
    this.#isFollowing = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#notice();
  }

  #follow() {
    if (this.#isFollowing) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#showEnd();
  }

  /** Up ends following at once; down near to the end, or at it, begins it again. */
  #notice() {
    const top = this.#scroller.scrollTop;
    const distance = this.#distance();
    // A text that became shorter moves the position up too, but leaves it at the end.
    if (distance < 2) this.#isFollowing = true;
    else if (top < this.#lastTop) this.#isFollowing = false;
    else if (top > this.#lastTop) this.#isFollowing = distance < END_PIXELS;
    this.#lastTop = top;
    this.#showEnd();
  }

  #showEnd() {
    this.#end.hidden = this.#isFollowing || this.#distance() < END_PIXELS;
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight;
  }
}
