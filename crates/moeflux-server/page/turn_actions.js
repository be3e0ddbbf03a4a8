// What can be done to a turn, for the views of turns.

/**
 * `talk`, `thread()`, `composer()` and `compare()` are the parts of the page; `show()` shows the
 * conversation at once, and `shorten()` leaves out its oldest turns.
 */
export function turnActions({ talk, thread, composer, compare, show, shorten }) {
  return {
    pick: async (id, view, step) => {
      await talk.pick(id);
      show();
      thread().focusVersion(id, step);
    },
    isReady: () => talk.isReady(),
    editQuestion: (turn, text) => {
      composer().focus();
      talk.editQuestion(turn, text, turn.files ?? []);
    },
    editAnswer: (turn, text) => talk.editAnswer(turn, text),
    editLast: () => thread().editLastQuestion(),
    giveResults: (turn, results) => {
      composer().focus();
      talk.giveResults(turn, results);
    },
    regenerate: (turn) => talk.regenerate(turn),
    resume: (turn) => talk.resume(turn),
    score: (turn) => talk.score(turn),
    continueFrom: (place) => {
      thread().focus();
      talk.continueFrom(place);
    },
    compare: (parent, seed) => compare().open(parent, seed),
    shorten,
    includeAll: () => talk.includeAll(),
  };
}
