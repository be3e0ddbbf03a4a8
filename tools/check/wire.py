"""Shows recorded answers of the dialects to the clients' own decoders, and records their requests.

    python3 tools/check/wire.py answers         every file of crates/moeflux-server/tests/recorded/answers
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
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

ANSWERS = pathlib.Path(__file__).parents[2] / "crates/moeflux-server/tests/recorded/answers"
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
    for it in objects:
        if "error" not in it or it.get("error") is None:
            if it.get("type") not in UNTYPED:
                adapter.validate_python(without_nulls(it) if kind.startswith("completions") else it)


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


def read(kind, o, a):
    """The answer as its client reads it: whole, or joined from its stream by the client."""
    chat = {"model": "m", "messages": QUESTION}
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
        with o.chat.completions.stream(**chat) as stream:
            stream.until_done()
            return stream.get_final_completion()
    if kind == "completions.sse":
        return list(o.completions.create(model="m", prompt="x", stream=True))
    if kind == "responses.sse":
        with o.responses.stream(model="m", input="x") as stream:
            last = [event for event in stream][-1]
            return last.response
    with a.messages.stream(**message) as stream:
        return stream.get_final_message()


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
                answer = read(kind, *clients(server))
            except openai.LengthFinishReasonError as cut:
                answer = cut.completion
            found = summary(kind, answer)
            outcome = f"wrong  {found}: no failure" if is_failure and "failed" not in found else f"ok     {found}"
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
    yield "echo", lambda: o.completions.create(model="m", prompt="Once", max_tokens=0, echo=True, logprobs=1, temperature=0)
    yield "tokens", lambda: o.completions.create(model="m", prompt=[[1, 2, 3], [4, 5]], max_tokens=1, echo=True, logprobs=5)
    yield "several", lambda: o.completions.create(model="m", prompt=["a", "b"], stream=True, n=2, stop="x")
    yield "plain", lambda: response(model="m", input="Why is the sky blue?")
    yield "items", lambda: response(
        model="m", instructions="Be brief.", input=ITEMS, tools=[{"type": "function", **FUNCTION}], stream=True, store=False,
        include=["reasoning.encrypted_content"], reasoning={"effort": "medium", "summary": "auto"}, max_output_tokens=100,
        text={"format": {"type": "text"}, "verbosity": "low"}, temperature=0.2, top_p=0.9, parallel_tool_calls=True,
        truncation="disabled", metadata={"k": "v"})
    yield "remembers", lambda: response(model="m", input="And?", previous_response_id="resp_1")
    yield "plain", lambda: message(model="claude", max_tokens=64, messages=QUESTION)
    tool = {"name": "weather", "description": "Weather of a city", "input_schema": SCHEMA}
    yield "blocks", lambda: a.messages.create(
        model="claude", max_tokens=2048, system=[BILLING, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=BLOCKS, tools=[tool], tool_choice={"type": "auto"}, thinking={"type": "enabled", "budget_tokens": 1024},
        stop_sequences=["STOP"], metadata={"user_id": "u"}, stream=True)
    yield "goes-on", lambda: message(model="claude", max_tokens=64, messages=QUESTION + [{"role": "assistant", "content": "Because"}])
    yield "thread", lambda: tool_runner(a)
    yield "count", lambda: a.messages.count_tokens(model="claude", messages=QUESTION, system="Be brief.", tools=[tool])


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
