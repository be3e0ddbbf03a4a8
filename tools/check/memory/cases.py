"""The cases: bodies that are small to send and large to hold.

Each is a name, a function that makes requests, and the statuses that are right. A request is
(path, body); those of one case are sent at the same time. Bodies are bytes or JSON.
"""

import json
import random

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
OK, REFUSED = (200,), (400, 413, 503)
ANY = OK + REFUSED


def user(text):
    return [{"role": "user", "content": text}]


def chat(messages, **more):
    return CHAT, {"messages": messages, "max_tokens": 1, **more}


def text(prompt, **more):
    return TEXT, {"prompt": prompt, "max_tokens": 1, **more}


def tool(index, n_properties, kind=lambda n: {"type": "string"}):
    names = [f"p{n}" for n in range(n_properties)]
    schema = {"type": "object", "properties": {name: kind(n) for n, name in enumerate(names)}}
    return {"type": "function", "function": {"name": f"f{index}", "parameters": schema}}


def call(index, arguments):
    function = {"name": "f", "arguments": arguments}
    return {"id": f"c{index}", "type": "function", "function": function}


def words(n_bytes, seed=0):
    draw = random.Random(seed)
    made = []
    while n_bytes > 0:
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(1, 9)))
        made.append(word)
        n_bytes -= len(word) + 1
    return " ".join(made)


def nested(depth):
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


def objects(n):
    return b'{"messages": [' + b",".join([b"{}"] * n) + b"]}"


def schema(body, **more):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": body}}
    return chat(user("a"), response_format=form, **more)


MB = 1_000_000
# Tokens that end an answer of either model.
ENDLESS = {"logit_bias": {str(token): -100 for token in (*range(256, 259), *range(8_180, 8_192))}}
HISTORY = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def of_calls(n_calls, arguments='{"a": 1}'):
    calls = [call(n, arguments) for n in range(n_calls)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "1"} for n in range(n_calls)]
    return user("a") + [{"role": "assistant", "tool_calls": calls}] + results


# What was measured first.
KNOWN = [
    ("known-logprobs", lambda: [chat(user("Count."), n=8, logprobs=True, top_logprobs=20,
                                     max_tokens=400, temperature=2, **ENDLESS)], ANY),
    ("known-text-31", lambda: [text(words(31 * MB))], REFUSED),
    ("known-text-31-chat", lambda: [chat(user(words(31 * MB)))], REFUSED),
    ("known-text-31-eight", lambda: [text(words(31 * MB, n)) for n in range(8)], REFUSED),
    ("known-tools", lambda: [chat(user("a"), tools=[tool(n, 300) for n in range(1024)])], REFUSED),
    ("known-calls", lambda: [chat(of_calls(20_000))], REFUSED),
    ("known-messages", lambda: [(CHAT, objects(5 * MB))], REFUSED),
    ("known-grammar", lambda: [schema({"type": "object", "properties": {"a": {"type": "string"}},
                                       "required": ["a"]}, max_tokens=20)], ANY),
]

# Beside those: other shapes of the same, other fields, other dialects, and many at once.
MORE = [
    ("text-1", lambda: [text(words(1 * MB))], ANY),
    ("text-1-eight", lambda: [text(words(1 * MB, n)) for n in range(8)], ANY),
    ("text-04-sixteen", lambda: [text(words(MB * 4 // 10, n)) for n in range(16)], ANY),
    ("text-a", lambda: [text("a" * MB)], ANY),
    ("text-spaces", lambda: [text(" " * MB)], ANY),
    ("text-lines", lambda: [text("\n" * MB)], ANY),
    ("text-digits", lambda: [text("7" * MB)], ANY),
    ("text-han", lambda: [text("語" * 300_000)], ANY),
    ("text-emoji", lambda: [text("👍🏽" * 100_000)], ANY),
    ("text-marks", lambda: [text("e\u0301\u0327" * 200_000)], ANY),
    ("text-ligatures", lambda: [text("\ufdfa" * 300_000)], ANY),
    ("text-escapes", lambda: [(TEXT, b'{"max_tokens": 1, "prompt": "' + b"\\u0001" * 160_000
                               + b'"}')], ANY),
    ("text-markers", lambda: [text("<|im_start|>" * 80_000)], ANY),
    ("text-echo", lambda: [text(words(200_000), echo=True)], ANY),
    ("text-echo-n", lambda: [text(words(3_000), echo=True, n=64)], ANY),
    ("text-echo-scores", lambda: [text(words(3_000), echo=True, logprobs=20, n=8)], ANY),
    ("text-list", lambda: [text([words(300, n) for n in range(100)])], ANY),
    ("text-list-short", lambda: [text(["a"] * 1_000)], ANY),
    ("text-tokens", lambda: [text([5] * 400_000)], ANY),
    ("text-tokens-lists", lambda: [text([[5]] * 1_000)], ANY),
    ("text-stops", lambda: [text("a", stop=["b" * 1_000] * 16)], ANY),
    ("text-suffix", lambda: [text("a", suffix="b" * MB)], ANY),
    ("text-user", lambda: [text("a", user="b" * 4 * MB)], ANY),
    ("text-unknown", lambda: [text("a", **{f"x{n}": n for n in range(300_000)})], ANY),
    ("text-bias", lambda: [text("a", logit_bias={str(n): 1 for n in range(8_000)})], ANY),
    ("text-bias-many", lambda: [text("a", logit_bias={str(n): 1 for n in range(300_000)})], ANY),
    ("logprobs-whole", lambda: [text("a", logprobs=20, n=8, max_tokens=300, temperature=2,
                                     **ENDLESS)], ANY),
    ("logprobs-stream", lambda: [chat(user("a"), logprobs=True, top_logprobs=20, stream=True, n=8,
                                      max_tokens=300, temperature=2, **ENDLESS)], ANY),
    ("logprobs-responses", lambda: [(RESPONSES, {"input": "a", "top_logprobs": 20,
                                                 "include": ["message.output_text.logprobs"],
                                                 "max_output_tokens": 400, "temperature": 2})],
     ANY),
    ("logprobs-eight", lambda: [chat(user("a"), logprobs=True, top_logprobs=20, max_tokens=300,
                                     temperature=2) for _ in range(8)], ANY),
    ("n-128", lambda: [chat(user("a"), n=128, max_tokens=8)], ANY),
    ("n-128-tools", lambda: [chat(user("a"), n=128, max_tokens=2,
                                  tools=[tool(n, 20) for n in range(50)])], ANY),
    ("messages-many", lambda: [chat(user("a") * 20_000)], ANY),
    ("messages-2000", lambda: [chat(HISTORY * 1_000 + user("c"))], ANY),
    ("messages-empty", lambda: [chat(user("") * 3_000)], ANY),
    ("messages-parts", lambda: [chat(user([{"type": "text", "text": "a"}] * 50_000))], ANY),
    ("messages-strings", lambda: [chat(user(["a"] * 200_000))], ANY),
    ("messages-system", lambda: [chat([{"role": "system", "content": "a"}] * 3_000 + user("b"))],
     ANY),
    ("messages-late", lambda: [chat((user("a") + [{"role": "system", "content": "b"}]) * 1_500)],
     ANY),
    ("messages-thoughts", lambda: [chat(user("a") + [{"role": "assistant", "content": "b",
                                        "reasoning_content": words(400_000)}] + user("c"))], ANY),
    ("messages-long-name", lambda: [chat([{"role": "user", "content": "a", "name": "b" * MB}])],
     ANY),
    ("messages-1", lambda: [chat(user(words(MB)))], ANY),
    ("messages-1-eight", lambda: [chat(user(words(MB, n))) for n in range(8)], ANY),
    ("nested", lambda: [(CHAT, nested(4 * MB))], REFUSED),
    ("nested-lists", lambda: [(CHAT, b'{"messages": [' + b"[]," * 2 * MB + b"[]]}")], REFUSED),
    ("numbers", lambda: [(CHAT, b'{"messages": [' + b"1," * 4 * MB + b"1]}")], REFUSED),
    ("keys", lambda: [(CHAT, json.dumps({"messages": [{f"k{n}": 0 for n in range(200_000)}]}))],
     REFUSED),
    ("no-json", lambda: [(CHAT, b"[" * 8 * MB)], REFUSED),
    ("no-end", lambda: [(CHAT, b'{"messages": "' + b"a" * 8 * MB)], REFUSED),
    ("calls-200", lambda: [chat(of_calls(200))], ANY),
    ("calls-2000", lambda: [chat(of_calls(2_000))], ANY),
    ("calls-long", lambda: [chat(of_calls(20, json.dumps({"a": words(20_000)})))], ANY),
    ("calls-deep", lambda: [chat(of_calls(20, "[" * 100 + "]" * 100))], ANY),
    ("calls-values", lambda: [chat(of_calls(1, json.dumps(list(range(200_000)))))], ANY),
    ("calls-ones", lambda: [chat(of_calls(1, "[" + "1," * 100_000 + "1]"))], ANY),
    ("calls-ones-8", lambda: [chat(of_calls(1, "[" + "1," * 300_000 + "1]")) for _ in range(8)],
     ANY),
    ("calls-objects", lambda: [chat(of_calls(1, "[" + "{}," * 100_000 + "1]"))], ANY),
    ("schema-as-text", lambda: [text("a", guided_json='{"a": [' + "[]," * 200_000 + "[]]}")], ANY),
    ("tools-100", lambda: [chat(user("a"), tools=[tool(n, 10) for n in range(100)])], ANY),
    ("tools-1024", lambda: [chat(user("a"), tools=[tool(n, 1) for n in range(1024)])], ANY),
    ("tools-wide", lambda: [chat(user("a"), tools=[tool(0, 3_000)])], ANY),
    ("tools-demanded", lambda: [chat(user("a"), tool_choice="required",
                                     tools=[tool(n, 10) for n in range(60)])], ANY),
    ("tools-enum", lambda: [chat(user("a"), tools=[tool(0, 10, lambda n: {
        "enum": [f"v{m}" for m in range(400)]})])], ANY),
    ("tools-described", lambda: [chat(user("a"), tools=[
        {"type": "function", "function": {"name": "f", "description": words(400_000)}}])], ANY),
    ("tools-eight", lambda: [chat(user("a"), tools=[tool(n, 10) for n in range(60)])
                             for _ in range(8)], ANY),
    ("schema-wide", lambda: [schema(tool(0, 1_000)["function"]["parameters"], max_tokens=20)],
     ANY),
    ("schema-enum", lambda: [schema({"enum": [f"value {n}" for n in range(3_000)]},
                                    max_tokens=20)], ANY),
    ("schema-defs", lambda: [schema({"$defs": {f"d{n}": {"type": "string"} for n in range(2_000)},
                                     "type": "object"})], ANY),
    ("schema-pattern", lambda: [schema({"type": "string", "pattern": "^(a|b|c){1,200}x{1,200}$"},
                                       max_tokens=40)], ANY),
    ("schema-eight", lambda: [schema({"type": "object", "properties": {
        f"p{n}": {"type": "string", "pattern": "^[a-z]{3,40}[0-9]+$"}}}, max_tokens=40)
        for n in range(8)], ANY),
    ("regex", lambda: [text("a", guided_regex="(a|b)*(c|d)*" * 200, max_tokens=40)], ANY),
    ("regex-states", lambda: [text("a", guided_regex="(a|b)*a(a|b){14}", max_tokens=200,
                                   temperature=2)], ANY),
    ("regex-states-eight", lambda: [text("a", guided_regex="(a|b)*a(a|b){14}", max_tokens=200, n=4,
                                         temperature=2, seed=n) for n in range(8)], ANY),
    ("grammar", lambda: [text("a", grammar="start: item+\nitem: /[a-z]+/ \",\" \n", max_tokens=40)],
     ANY),
    ("grammar-long", lambda: [text("a", grammar="start: " + " | ".join(
        f'"{n}"' for n in range(20_000)))], ANY),
    ("choices", lambda: [text("a", guided_choice=["b" * 900 + str(n) for n in range(1_000)])],
     ANY),
    ("anthropic", lambda: [(MESSAGES, {"max_tokens": 1, "messages": user(words(400_000))})], ANY),
    ("anthropic-blocks", lambda: [(MESSAGES, {"max_tokens": 1, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}] * 20_000}]})], ANY),
    ("anthropic-tools", lambda: [(MESSAGES, {"max_tokens": 1, "messages": user("a"), "tools": [
        {"name": f"f{n}", "input_schema": tool(0, 200)["function"]["parameters"]}
        for n in range(200)]})], ANY),
    ("anthropic-count", lambda: [("/v1/messages/count_tokens",
                                  {"model": "m", "messages": user(words(MB))})], ANY),
    ("responses", lambda: [(RESPONSES, {"input": words(400_000), "max_output_tokens": 16})], ANY),
    ("responses-items", lambda: [(RESPONSES, {"max_output_tokens": 16, "input": user("a") * 20_000})],
     ANY),
    ("tokenize", lambda: [("/tokenize", {"content": words(MB)})], ANY),
    ("detokenize", lambda: [("/detokenize", {"tokens": [5] * 400_000})], ANY),
    ("template", lambda: [("/apply-template", {"messages": user(words(MB))})], ANY),
    ("template-variables", lambda: [chat(user("a"), chat_template_kwargs={
        f"v{n}": [n] for n in range(20_000)})], ANY),
    ("gone", "gone", ANY),
    ("gone-eight", "gone-eight", ANY),
    ("slow-bodies", "slow-bodies", ANY),
    ("unread", "unread", ANY),
    ("mixed", lambda: [chat(user(words(300_000, n))) for n in range(6)]
     + [schema({"type": "object"}, max_tokens=20) for _ in range(6)]
     + [chat(user("a"), n=4, logprobs=True, top_logprobs=20, max_tokens=60) for _ in range(6)], ANY),
]

# Texts of commands: the arguments before the file, and what makes the file.
COMMANDS = [
    ("prompt-file-20", ["generate", "-n", "1", "--prompt-file"], lambda: words(20 * MB)),
    ("prompt-file-20-chat", ["generate", "-n", "1", "--chat", "--prompt-file"],
     lambda: words(20 * MB)),
    ("prompt-file-a", ["generate", "-n", "1", "--prompt-file"], lambda: "a" * 20 * MB),
    ("prompt-file-han", ["generate", "-n", "1", "--prompt-file"], lambda: "語" * 6 * MB),
    ("eval-20", ["eval", "--limit", "2000", "--file"], lambda: words(20 * MB)),
    ("eval-20-lines", ["eval", "--limit", "2000", "--file"], lambda: "a\n" * 10 * MB),
]
