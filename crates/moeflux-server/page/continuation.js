// Bodies of the requests by which an answer goes on from one of its tokens, and their answers in
// the form of Chat Completions.
//
// The prompt is a list of tokens: those of the conversation up to there, as the chat template
// writes them, and then the one that was chosen, which must not melt into the text before it.
// Completions knows no thoughts, calls of tools or forms of answers, and gives all of it as text.

// Completions would stop after 16 tokens.
const N_TOKENS_MAX = 2 ** 31;
const N_TOP = 5;
const SAMPLING = [
  "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
  "repetition_penalty",
];
const FOR_TEMPLATE = ["tools", "chat_template_kwargs"];

/** Fields of a request of Chat Completions for probabilities. */
export const WITH_PROBABILITIES = Object.freeze({ logprobs: true, top_logprobs: N_TOP });

/**
 * For /tokenize: the conversation with an answer that goes on. An empty text would let the thoughts
 * go on, therefore the chosen token is in it then.
 */
export function conversationBody(messages, { thoughts, from }, fields) {
  const content = from.text === "" ? from.token : from.text;
  const last = { role: "assistant", content };
  if (thoughts) last.reasoning_content = thoughts;
  const body = { messages: [...messages, last], continue_final_message: true };
  return { ...pick(fields, FOR_TEMPLATE), ...body };
}

/** For /tokenize: the chosen token alone; null if it is in the conversation already. */
export function tokenBody({ from }) {
  return from.text === "" ? null : { content: from.token, add_special: false };
}

/** For /tokenize, where a token has no text of its own: it is read with the text before it. */
export function joinedBody(messages, { thoughts, from }, fields) {
  const joined = { text: from.text + from.token, token: "" };
  return conversationBody(messages, { thoughts, from: joined }, fields);
}

/** For /v1/completions. */
export function completionBody(tokens, fields, seed) {
  return {
    ...pick(fields, SAMPLING),
    prompt: tokens,
    max_tokens: fields.max_tokens ?? N_TOKENS_MAX,
    logprobs: N_TOP,
    stream: true,
    stream_options: { include_usage: true },
    seed,
  };
}

/** A chunk of Completions as one of Chat Completions. */
export function asChatChunk({ choices = [], ...rest }) {
  return {
    ...rest,
    choices: choices.map(({ text, logprobs, finish_reason: finish }) => ({
      delta: { content: text ?? "" },
      logprobs: { content: entries(logprobs) },
      finish_reason: finish,
    })),
  };
}

/** The table of Completions has a column for each token, and no bytes. */
function entries(logprobs) {
  return (logprobs?.tokens ?? []).map((token, index) => {
    const top = Object.entries(logprobs.top_logprobs?.[index] ?? {});
    // The chosen token is in the table even if others are more likely.
    const others = top.filter(([name]) => name !== token);
    const isAmongMost = others.length < N_TOP;
    const listed = isAmongMost ? top : others;
    return {
      token,
      logprob: logprobs.token_logprobs?.[index] ?? null,
      top_logprobs: listed.map(([name, logprob]) => ({ token: name, logprob })),
    };
  });
}

function pick(object, keys) {
  return Object.fromEntries(keys.filter((key) => key in object).map((key) => [key, object[key]]));
}
