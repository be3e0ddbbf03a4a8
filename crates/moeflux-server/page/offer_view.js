// Shows what the hub offers before anything is downloaded, and asks before anything is removed.
//
// Invariant: no download begins without its size having been shown.

import { element, textButton } from "./dom.js";
import { offerFacts, offerWay } from "./model_list.js";
import { size } from "./words.js";

export class OfferPanel {
  element = element("section", { class: "offer", "aria-label": "Download", tabindex: "-1" });
  #ask;
  #actions;
  #abort = new AbortController();

  /**
   * `ask(signal)` returns the offer. `actions` are `pull(offer, thenLoad)` and `load(offer)`, which
   * may throw, `close()`, and `say(text)`, which reads aloud.
   */
  constructor({ hub, ask, actions }) {
    this.#ask = ask;
    this.#actions = actions;
    this.hub = hub;
  }

  /** Asks the hub; `note` says why it is asked again. */
  async open(note = "") {
    this.#show(element("p", { class: "hint" }, `Asking ${this.hub}…`));
    this.element.setAttribute("aria-busy", "true");
    try {
      const offer = await this.#ask(this.#abort.signal);
      this.#showOffer(offer, note);
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      this.#failed(error);
    }
    this.element.removeAttribute("aria-busy");
  }

  /** Forgets an answer that is still to come. */
  end() {
    this.#abort.abort();
    this.element.remove();
  }

  #show(...children) {
    this.element.replaceChildren(...children);
  }

  #buttons(...buttons) {
    const label = buttons.length > 0 ? "Cancel" : "Close";
    return element("div", { class: "buttons" }, ...buttons,
      textButton(label, () => this.#actions.close(), { class: "button quiet" }));
  }

  #failed(error) {
    this.#actions.say(error.message);
    this.#show(element("p", { class: "problem" }, error.message),
      this.#buttons(textButton("Ask again", () => this.open())));
    this.element.focus();
  }

  #showOffer(offer, note) {
    const { way, reason } = offerWay(offer);
    const buttons = [];
    const wish = size(offer.missing_bytes);
    const act = (run) => () => this.#act(run);
    if (way === "pull" && offer.runs) {
      buttons.push(
        textButton(`Download ${wish} and load`, act(() => this.#actions.pull(offer, true)),
          { class: "button primary" }),
        textButton("Download only", act(() => this.#actions.pull(offer, false)),
          { "aria-label": `Download only, ${wish}` }));
    } else if (way === "pull") {
      buttons.push(textButton(`Download ${wish}`, act(() => this.#actions.pull(offer, false))));
    } else if (way === "load") {
      buttons.push(textButton("Load", act(() => this.#actions.load(offer)),
        { class: "button primary" }));
    }
    const rows = offerFacts(offer).map(([name, text]) => element("div", {},
      element("dt", {}, name), element("dd", {}, text)));
    const isBad = way === "refused" && offer.missing_bytes !== 0;
    this.#show(element("h4", {}, offer.name), note && element("p", { class: "hint" }, note),
      element("dl", {}, ...rows), reason && element("p", { class: isBad ? "problem" : "hint" },
        reason), this.#buttons(...buttons));
    this.#actions.say(`${offer.name}: ${wish} to download. ${reason}`);
    if (this.element.contains(document.activeElement)) return;
    (buttons[0] ?? this.element).focus();
  }

  async #act(run) {
    const buttons = [...this.element.querySelectorAll("button")];
    buttons.forEach((button) => { button.disabled = true; });
    try {
      await run();
    } catch (error) {
      if (error.code === "changed") return this.open("Its size has changed meanwhile.");
      this.#failed(error);
    }
    return undefined;
  }
}

/** Asks whether a model shall be removed. `run` may throw; `close()` takes the question away. */
export function removal({ name, nBytes, run, close }) {
  const problem = element("p", { class: "problem", role: "status" });
  const keep = textButton("Keep it", close);
  const remove = textButton("Remove", async () => {
    remove.disabled = true;
    try {
      await run();
    } catch (error) {
      problem.textContent = error.message;
      remove.disabled = false;
    }
  }, { class: "button danger" });
  const freed = nBytes > 0 ? ` This frees ${size(nBytes)}.` : "";
  const question = `Remove ${name} from this drive?${freed} You can download it again.`;
  const panel = element("section", { class: "offer", role: "group", "aria-label": question },
    element("p", {}, question), problem, element("div", { class: "buttons" }, remove, keep));
  return { element: panel, open: () => keep.focus(), end: () => panel.remove() };
}
