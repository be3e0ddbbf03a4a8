// Turns the turns of a conversation and its settings into the body of a request.
//
// Invariant: the same turns, settings and seed give the same body, so that the server gives the
// same answer again. It does not send anything.

/** The messages of a branch. Turns before `firstSent` are left out; the system prompt never is. */
export function messagesOf(turns, system, firstSent) {
  const start = Math.max(turns.findIndex((turn) => turn.id === firstSent), 0);
  const messages = turns.slice(start).flatMap(messagesOfTurn);
  const text = (system ?? "").trim();
  return text ? [{ role: "system", content: text }, ...messages] : messages;
}

function messagesOfTurn(turn) {
  if (turn.role === "user") return [{ role: "user", content: questionText(turn) }];
  if (turn.role === "tool") {
    return turn.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
  }
  const message = { role: "assistant", content: turn.text };
  if (turn.thoughts) message.reasoning_content = turn.thoughts;
  if (turn.calls?.length > 0) {
    message.tool_calls = turn.calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return [message];
}

/** A question with its files, each in a fence that is longer than any fence in it. */
export function questionText(turn) {
  const files = (turn.files ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...files, turn.text].filter((part) => part !== "").join("\n\n");
}

/** The body for a streamed answer. `fields` are those of `readSettings`. */
export function chatBody(messages, fields, seed) {
  return {
    ...fields,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    seed,
  };
}

/** A seed that JSON, JavaScript and the server hold exactly. */
export function drawSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}
