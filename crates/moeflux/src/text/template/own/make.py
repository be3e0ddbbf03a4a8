"""Encodes conversations with the encoder that DeepSeek V3.2 publishes, and writes `cases.json`,
which a test compares the template beside it with.

    python make.py ENCODER        (encoding_dsv32.py of the model, or the copy in the package sglang)
"""
import importlib.util
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a <city> & é 語 \"q\" it's",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, **arguments):
    return {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = call("weather", city="Zürich \"x\"\n<b>", days=[1, 2.5], at={"x": None}, n=3, ok=True, none=None)
SYSTEM = m("system", "Be brief. ")
QUESTION = m("user", " Hi <b>\n")
CALLED = [QUESTION, m("assistant", "Let me look.", reasoning_content="I look.", tool_calls=[WEATHER, call("now")]),
          m("tool", "sunny \"é\""), m("tool", "noon")]
AGAIN = [m("assistant", None, reasoning_content="Again.", tool_calls=[call("now")]), m("tool", "one")]
ANSWER = m("assistant", "Sunny.", reasoning_content="It is sunny.")
CONVERSATIONS = [
    [QUESTION],
    [SYSTEM, QUESTION],
    [SYSTEM, QUESTION, ANSWER],
    [SYSTEM, QUESTION, ANSWER, QUESTION],
    [QUESTION, ANSWER, m("system", "Now in French."), QUESTION],
    [SYSTEM, QUESTION, ANSWER, m("developer", "Do it.")],
    CALLED,
    [SYSTEM] + CALLED,
    CALLED + AGAIN,
    CALLED + AGAIN + [ANSWER],
    [SYSTEM] + CALLED + AGAIN + [ANSWER, QUESTION],
    [SYSTEM] + CALLED + [ANSWER, QUESTION] + CALLED[1:],
]


def published(messages, tools):
    """The messages as the encoder takes them: arguments as text, tools in the first message."""
    messages = json.loads(json.dumps(messages))  # no message or call is shared
    for message in messages:
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
    if tools:
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system"})
        messages[0]["tools"] = tools
    return messages


def main():
    spec = importlib.util.spec_from_file_location("encoder", sys.argv[1])
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)
    cases = []
    for messages in CONVERSATIONS:
        is_calling = any(message["role"] == "tool" for message in messages)
        for tools in [TOOLS] if is_calling else [None, TOOLS]:
            for thinking in [False, True]:
                expected = encoder.encode_messages(published(messages, tools), "thinking" if thinking else "chat")
                cases.append({"messages": messages, "tools": tools, "thinking": thinking, "expected": expected})
    (HERE / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
