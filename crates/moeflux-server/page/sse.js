// Turns the bytes of a stream of server-sent events into the texts of its `data` fields.
//
// Invariant: however the bytes are cut, the same events come out. Comments (keep-alives) and other
// fields are dropped. It does not know what the texts mean.

// Longer lines are not from a server of this kind; without a limit a stream could fill the memory.
const LINE_CHARACTERS_MAX = 16_000_000;

export class EventParser {
  #decoder = new TextDecoder();
  #rest = "";
  #data = [];

  /** Returns the events that are complete with these bytes. */
  push(bytes) {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    if (this.#rest.length > LINE_CHARACTERS_MAX) throw new Error("an event is too long");
    const events = [];
    let start = 0;
    for (;;) {
      const end = this.#endOfLine(start);
      if (end === null) break;
      this.#line(this.#rest.slice(start, end.line), events);
      start = end.next;
    }
    this.#rest = this.#rest.slice(start);
    return events;
  }

  /** Where the line from `start` ends, and the next begins; null if its end has not come. */
  #endOfLine(start) {
    const match = /\r\n|\n|\r/g;
    match.lastIndex = start;
    const found = match.exec(this.#rest);
    // A carriage return at the end may be the first half of a line break.
    if (!found || (found[0] === "\r" && match.lastIndex === this.#rest.length)) return null;
    return { line: found.index, next: match.lastIndex };
  }

  #line(line, events) {
    if (line === "") {
      if (this.#data.length > 0) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line.startsWith("data:")) {
      this.#data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
}
