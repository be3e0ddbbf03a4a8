// Says short things: to screen readers, and in a corner of the page with a way back.
//
// Invariant: an answer's text is never announced, only that it began, ended or failed.

import { element, iconButton, textButton } from "./dom.js";

const SHOWN_MS = 10_000;
const N_SHOWN_MAX = 3;

/** Lets a screen reader say the text when it has time. */
export function announce(text) {
  const region = document.getElementById("announcements");
  region.textContent = "";
  // A reader notices a change, not a text that is set again in the same task.
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}

/** Shows a line for a while. `action` is `{label, run}`; `onEnd` runs if it was not taken. */
export function notify(text, { action = null, onEnd = () => {} } = {}) {
  const list = document.getElementById("notices");
  let timer = 0;
  const end = (isTaken) => {
    clearTimeout(timer);
    if (!line.isConnected) return;
    line.remove();
    if (!isTaken) onEnd();
  };
  const button = action && textButton(action.label, () => {
    end(true);
    action.run();
  });
  const close = iconButton("close", "Close this notice", () => end(false));
  const line = element("div", { class: "notice" }, element("span", {}, text), button, close);
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => end(false), SHOWN_MS);
  };
  // A person who points at it or has gone there by keyboard needs more time.
  line.addEventListener("pointerenter", () => clearTimeout(timer));
  line.addEventListener("pointerleave", wait);
  line.addEventListener("focusin", () => clearTimeout(timer));
  line.addEventListener("focusout", wait);
  while (list.children.length >= N_SHOWN_MAX) list.firstChild.querySelector(".icon-button").click();
  list.append(line);
  wait();
}
