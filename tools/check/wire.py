"""Shows recorded answers of the dialects to the clients' own decoders, and records their requests.

    python3 tools/check/wire.py answers         every file of crates/moeflux-wire/tests/recorded/answers
    python3 tools/check/wire.py record DIR      what the Python clients send, one file per request

Needs the packages openai and anthropic. `answers` serves each file from a local port, reads it with
the client that speaks its dialect, and validates each object against the client's types.
"""
import http.server
import json
import pathlib
import sys
import threading

import anthropic
import openai
import pydantic
from anthropic.types import Message, RawMessageStreamEvent
from openai.lib.streaming._deltas import accumulate_delta
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

ANSWERS = pathlib.Path(__file__).parents[2] / "crates/moeflux-wire/tests/recorded/answers"
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


class Server(http.server.ThreadingHTTPServer):
    """Answers every request with `body`, and keeps what was sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.kind, self.status, self.sent = b"", "application/json", 200, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.sent.append((self.path.split("?")[0], body))
        self.send_response(self.server.status)
        self.send_header("content-type", self.server.kind)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *arguments):
        pass


def clients(server):
    return (openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0),
            anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0))


def events(text):
    """The JSON objects of a stream."""
    lines = (line[6:] for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


STRICT = {"chat.json": ChatCompletion, "chat.sse": ChatCompletionChunk, "completions.json": Completion,
          "completions.sse": Completion, "responses.json": Response, "responses.sse": ResponseStreamEvent,
          "messages.json": Message, "messages.sse": RawMessageStreamEvent}
# Neither is part of the types: a ping is skipped, and a failure is raised, before they are asked.
UNTYPED = ("ping", "error")


def validate(kind, objects):
    adapter = pydantic.TypeAdapter(STRICT[kind])
    instead = {"completions.json": without_nulls, "completions.sse": without_nulls, "chat.sse": without_custom}
    for it in objects:
        if "error" not in it or it.get("error") is None:
            if it.get("type") not in UNTYPED:
                adapter.validate_python(instead.get(kind, lambda it: it)(it))


def without_nulls(it):
    """OpenAI's types of Completions lack two nulls that its API sends: in place of a reason until
    an answer ends, and of what is not known of an echoed prompt's first token."""
    it = json.loads(json.dumps(it))
    for choice in it.get("choices", []):
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        table = choice.get("logprobs") or {}
        for key, instead in [("token_logprobs", 0.0), ("top_logprobs", {})]:
            if key in table:
                table[key] = [instead if value is None else value for value in table[key]]
    return it


def without_custom(it):
    """OpenAI's type of a chunk knows no custom tools, although its API sends their calls so."""
    it = json.loads(json.dumps(it))
    for call in (call for choice in it["choices"] for call in choice["delta"].get("tool_calls", [])):
        if call.get("type") == "custom":
            call["type"] = "function"
    return it


def joined(stream):
    """A chat completion whose calls the client's helper leaves out, as the client adds up deltas."""
    messages, finish = {}, {}
    for choice in (choice for chunk in stream for choice in chunk.choices):
        delta = choice.delta.to_dict()
        messages[choice.index] = accumulate_delta(messages.get(choice.index, {}), delta)
        finish[choice.index] = choice.finish_reason
    choices = [{"index": n, "message": messages[n], "finish_reason": finish[n]} for n in sorted(messages)]
    return ChatCompletion.model_validate({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})


def read(kind, name, o, a):
    """The answer as its client reads it: whole, or joined from its stream by the client."""
    chat = {"model": "m", "messages": QUESTION}
    if kind == "chat.sse" and "custom" in name:
        return joined(o.chat.completions.create(**chat, stream=True))
    message = {**chat, "max_tokens": 9}
    if kind == "chat.json":
        return o.chat.completions.create(**chat)
    if kind == "completions.json":
        return o.completions.create(model="m", prompt="x")
    if kind == "responses.json":
        return o.responses.create(model="m", input="x")
    if kind == "messages.json":
        return a.messages.create(**message)
    if kind == "chat.sse":
        with o.chat.completions.stream(**chat, **({"tools": TOOLS} if calls_in(name) else {})) as stream:
            stream.until_done()
            return stream.get_final_completion()
    if kind == "completions.sse":
        return list(o.completions.create(model="m", prompt="x", stream=True))
    if kind == "responses.sse":
        with o.responses.stream(model="m", input="x", tools=[{"type": "function", **it["function"]} for it in TOOLS]) as stream:
            last = [event for event in stream][-1]
            return last.response
    with a.messages.stream(**message) as stream:
        return stream.get_final_message()


def arguments(text, parsed):
    """As the client has parsed them; what was cut stays a text."""
    try:
        return json.loads(text) if parsed is None else parsed
    except ValueError:
        return text


def calls(kind, found):
    """Each call as a program sees it: the tool's name and what it is given. Their ids must differ."""
    if kind.startswith("chat"):
        all_calls = [call for choice in found.choices for call in choice.message.tool_calls or []]
        ids = [call.id for call in all_calls]
        result = [(it.custom.name, it.custom.input) if it.type == "custom" else
                  (it.function.name, arguments(it.function.arguments, getattr(it.function, "parsed_arguments", None)))
                  for it in all_calls]
    elif kind.startswith("responses"):
        items = [item for item in found.output if item.type in ("function_call", "custom_tool_call")]
        ids = [item.call_id for item in items]
        name = lambda it: f"{it.namespace}.{it.name}" if it.namespace else it.name
        result = [(name(it), it.input if it.type == "custom_tool_call" else
                   arguments(it.arguments, getattr(it, "parsed_arguments", None))) for it in items]
    else:
        blocks = [block for block in getattr(found, "content", []) if block.type == "tool_use"]
        ids = [block.id for block in blocks]
        result = [(block.name, block.input) for block in blocks]
    assert len(set(ids)) == len(ids), ids
    return result


BERN, ZURICH = ("weather", {"city": "Bern"}), ("weather", {"city": "Z\u00fcrich \"West\""})
CUT = ("weather", "{\"city\": \"Z\u00fc")
# What the calls of an answer are, by its name or else by the part behind the dialect.
CALLS = {"calls": [BERN, ZURICH], "between": [BERN, ZURICH], "nothing": [("now", {})],
         "custom": [("patch", "*** Begin\n+ \u00e9 \"x\""), ("weather", {})], "cutcall": [BERN, CUT],
         "cutstop": [CUT], "cutcustom": [BERN, ("patch", "*** Begin")], "each": [BERN, ("weather", {"city": "Basel"})],
         "members": [("agents.close", {"id": 7}), ("agents.run", "ls\t-l")],
         # What is sent whole in chat and in Messages has no call that was cut: in Messages it is never a
         # text. Of a stream, some clients leave what is not whole out of an object.
         "chat-cutcall.json": [BERN], "chat-cutcustom.json": [BERN], "chat-cutfirst.json": [BERN],
         "chat-cutcall.sse": [BERN, ("weather", {})], "messages-cutcall.json": [BERN],
         "messages-cutcall.sse": [BERN, ("weather", {})], "messages-cutfirst.json": [BERN],
         "messages-cutfirst.sse": [("weather", {}), ("now", {}), BERN]}
TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": {"type": "object"}}}
         for name in ("weather", "now")]


def calls_in(name):
    return CALLS.get(name, CALLS.get(name.split("-")[1].split(".")[0], []))


def summary(kind, found):
    """What a program sees of it: thoughts, text, why it ended, tokens."""
    if kind.startswith("chat"):
        return [(getattr(c.message, "reasoning_content", None), c.message.content, c.finish_reason) for c in found.choices]
    if kind.startswith("completions"):
        parts = [c for it in (found if isinstance(found, list) else [found]) for c in it.choices]
        return [(c.index, c.text, c.finish_reason) for c in parts]
    if kind.startswith("responses"):
        return [found.status, found.output_text, [item.type for item in found.output], found.usage and found.usage.total_tokens]
    return [[(b.type, getattr(b, "text", None) or getattr(b, "thinking", None)) for b in found.content],
            found.stop_reason, found.stop_sequence, found.usage.output_tokens]


def check_answers():
    server = Server()
    n_wrong = 0
    for path in sorted(ANSWERS.iterdir()):
        kind = path.name.split("-")[0] + path.suffix
        text = path.read_text()
        is_failure = "failed" in path.name
        server.body = text.encode()
        server.kind = "text/event-stream" if path.suffix == ".sse" else "application/json"
        server.status = 500 if is_failure and path.suffix == ".json" else 200
        try:
            validate(kind, events(text) if path.suffix == ".sse" else [json.loads(text)])
            try:
                answer = read(kind, path.name, *clients(server))
            except openai.LengthFinishReasonError as cut:
                answer = cut.completion
            found = summary(kind, answer)
            outcome = f"wrong  {found}: no failure" if is_failure and "failed" not in found else f"ok     {found}"
            called = [] if kind.startswith("completions") else calls(kind, answer)
            outcome += f" {called}" if called else ""
            if called != calls_in(path.name):
                outcome = f"wrong  {called} are not {calls_in(path.name)}"
        except (openai.APIError, anthropic.APIError) as error:
            outcome = f"{'ok    ' if is_failure else 'wrong '} {type(error).__name__}: {error}"
        except Exception as error:
            outcome = f"wrong  {type(error).__name__}: {error}"
        n_wrong += outcome.startswith("wrong")
        print(f"{path.name:28} {outcome}"[:240])
    print(f"{n_wrong} wrong; openai {openai.__version__}, anthropic {anthropic.__version__}")
    sys.exit(n_wrong > 0)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Weather of a city", "parameters": SCHEMA, "strict": True}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}
OPTIONS = dict(
    temperature=0.5, top_p=0.9, seed=7, stop=["\n\n"], max_completion_tokens=64, n=2, logprobs=True, top_logprobs=3,
    frequency_penalty=0.1, presence_penalty=-0.1, logit_bias={"50256": -100}, user="u", parallel_tool_calls=True,
    service_tier="auto", store=False, metadata={"a": "b"}, reasoning_effort="low", verbosity="low",
    response_format={"type": "text"}, stream=True, stream_options={"include_usage": True},
    extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "chat_template_kwargs": {"enable_thinking": False}})
ITEMS = [
    {"role": "user", "content": "Weather in Bern?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask the tool."}]},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{\"city\": \"Bern\"}"},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "sunny"}]},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
     "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}]},
    {"role": "developer", "content": [{"type": "input_text", "text": "Answer in French."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Weather in Bern?", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I ask the tool.", "signature": "bW9lZmx1eA=="}, {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}], "is_error": False},
        {"type": "text", "text": "Well?"}]}]
FORMAT = {"type": "json_schema", "schema": SCHEMA}
PATCH = {"name": "patch", "description": "Changes files"}
LARK = {"syntax": "lark", "definition": "start: /[a-z]+/"}
WEATHER = {"name": "weather", "description": "Weather of a city", "input_schema": SCHEMA}
FAILED = [
    {"role": "user", "content": "Weather in Bern?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such city", "is_error": True}]}]
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=abc12;"}


def tool_runner(a):
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return "sunny"

    return list(a.beta.messages.tool_runner(model="claude", max_tokens=64, messages=QUESTION, tools=[weather]))


def requests(o, a):
    """A name for each request, and what sends it."""
    chat, response, message = o.chat.completions.create, o.responses.create, a.messages.create
    tools = [{"type": "function", "function": FUNCTION}]
    yield "plain", lambda: chat(model="gpt-4o", messages=QUESTION)
    yield "options", lambda: chat(model="gpt-4o", messages=QUESTION, **OPTIONS)
    yield "tools", lambda: chat(model="gpt-4o", tools=tools, tool_choice="auto", messages=[
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in"}, {"type": "text", "text": "Bern?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}])
    yield "goes-on", lambda: chat(model="gpt-4o", messages=QUESTION + [{"role": "assistant", "content": "Because"}])
    yield "image", lambda: chat(model="gpt-4o", messages=[
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])
    yield "schema", lambda: chat(model="gpt-4o", messages=QUESTION, response_format={"type": "json_object"})
    yield "forced", lambda: chat(
        model="gpt-4o", messages=QUESTION, parallel_tool_calls=False, tool_choice={"type": "function", "function": {"name": "weather"}},
        tools=tools + [{"type": "custom", "custom": {**PATCH, "format": {"type": "grammar", "grammar": LARK}}}])
    yield "allowed", lambda: chat(
        model="gpt-4o", messages=QUESTION, tools=tools, response_format={"type": "json_schema", "json_schema": {
            "name": "place", "description": "A place", "strict": True, "schema": SCHEMA}},
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}})
    yield "regex", lambda: chat(model="m", messages=QUESTION, reasoning_effort="minimal", extra_body={
        "structured_outputs": {"regex": "yes|no"}, "max_thinking_tokens": 256})
    yield "lark", lambda: o.completions.create(model="m", prompt="Once", extra_body={"grammar": {"type": "lark", "definition": "start: \"upon\""}})
    yield "choice", lambda: o.completions.create(model="m", prompt="Once", extra_body={"guided_choice": ["upon", "(more)"]})
    yield "echo", lambda: o.completions.create(model="m", prompt="Once", max_tokens=0, echo=True, logprobs=1, temperature=0)
    yield "tokens", lambda: o.completions.create(model="m", prompt=[[1, 2, 3], [4, 5]], max_tokens=1, echo=True, logprobs=5)
    yield "several", lambda: o.completions.create(model="m", prompt=["a", "b"], stream=True, n=2, stop="x")
    yield "plain", lambda: response(model="m", input="Why is the sky blue?")
    yield "items", lambda: response(
        model="m", instructions="Be brief.", input=ITEMS, tools=[{"type": "function", **FUNCTION}], stream=True, store=False,
        include=["reasoning.encrypted_content"], reasoning={"effort": "medium", "summary": "auto"}, max_output_tokens=100,
        text={"format": {"type": "text"}, "verbosity": "low"}, temperature=0.2, top_p=0.9, parallel_tool_calls=True,
        truncation="disabled", metadata={"k": "v"})
    yield "allowed", lambda: response(
        model="m", input="Why?", text={"format": {**FORMAT, "name": "place", "strict": True}}, reasoning={"effort": "low"},
        tools=[{"type": "function", **FUNCTION}, {"type": "custom", **PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}},
               {"type": "namespace", "name": "agents", "description": "d", "tools": [{"type": "function", "name": "close"}]}],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "custom", "name": "patch"}, {"type": "namespace", "name": "agents"}]})
    yield "remembers", lambda: response(model="m", input="And?", previous_response_id="resp_1")
    yield "plain", lambda: message(model="claude", max_tokens=64, messages=QUESTION)
    yield "blocks", lambda: a.messages.create(
        model="claude", max_tokens=2048, system=[BILLING, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=BLOCKS, tools=[WEATHER], tool_choice={"type": "auto"}, thinking={"type": "enabled", "budget_tokens": 1024},
        stop_sequences=["STOP"], metadata={"user_id": "u"}, stream=True)
    yield "goes-on", lambda: message(model="claude", max_tokens=64, messages=QUESTION + [{"role": "assistant", "content": "Because"}])
    yield "schema", lambda: message(
        model="claude", max_tokens=64, messages=QUESTION, output_config={"format": FORMAT, "effort": "medium"},
        tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    yield "forced", lambda: message(
        model="claude", max_tokens=2048, messages=FAILED, tools=[{**WEATHER, "strict": True}],
        tool_choice={"type": "tool", "name": "weather"}, thinking={"type": "enabled", "budget_tokens": 1024})
    yield "thread", lambda: tool_runner(a)
    yield "count", lambda: a.messages.count_tokens(model="claude", messages=QUESTION, system="Be brief.", tools=[WEATHER])


def record(folder):
    server = Server()
    server.status, server.body = 400, b'{"error": {"message": "recorded"}}'
    for name, send in requests(*clients(server)):
        try:
            send()
        except (openai.APIError, anthropic.APIError):
            pass
        path, body = server.sent[0]
        server.sent.clear()
        kind = path.removeprefix("/v1/").replace("/", "_")
        (folder / f"{kind}-{name}.json").write_text(json.dumps(json.loads(body), indent=1, ensure_ascii=False) + "\n")
    print(f"{len(list(folder.iterdir()))} files in {folder}")


if sys.argv[1:] == ["answers"]:
    check_answers()
elif len(sys.argv) == 3 and sys.argv[1] == "record":
    record(pathlib.Path(sys.argv[2]))
else:
    sys.exit(__doc__)
