"""Calls of tools and schemas through the packages of others: checks of check.py.

The requests, with the calls that are right, are those of the demo model's own test.
"""
import json
from pathlib import Path

CASES = json.loads((Path(__file__).parents[3] / "crates/moeflux-demo/toolcalls.json").read_text())
# Of 20, as in the demo model's own test.
N_RIGHT_MIN = 16


def user(case):
    return [{"role": "user", "content": case["request"]}]


def count(answer):
    """How many requests get the right call; `answer` gives names and arguments as JSON."""
    found = [[(name, json.loads(text)) for name, text in answer(case)] for case in CASES]
    right = [calls == [(case["name"], case["arguments"])] for case, calls in zip(CASES, found)]
    assert sum(right) >= N_RIGHT_MIN, list(zip(right, found))
    return f"{sum(right)} of {len(CASES)}"


def calls_in_chat(demo, _):
    def answer(case):
        options = dict(model="any", messages=user(case), tools=case["tools"], temperature=0, max_tokens=128)
        whole = demo.openai.chat.completions.create(**options).choices[0]
        calls = [(it.function.name, it.function.arguments) for it in whole.message.tool_calls or []]
        assert whole.finish_reason == ("tool_calls" if calls else "stop"), whole
        with demo.openai.chat.completions.stream(**options) as stream:
            last = stream.get_final_completion().choices[0].message
        assert [(it.function.name, it.function.arguments) for it in last.tool_calls or []] == calls, last
        return calls
    return count(answer)


def calls_in_responses(demo, _):
    def answer(case):
        tools = [{"type": "function", **it["function"]} for it in case["tools"]]
        options = dict(model="any", input=case["request"], tools=tools, temperature=0, max_output_tokens=128)
        of = lambda it: [(item.name, item.arguments) for item in it.output if item.type == "function_call"]
        calls = of(demo.openai.responses.create(**options))
        with demo.openai.responses.stream(**options) as stream:
            assert of(stream.get_final_response()) == calls
        return calls
    return count(answer)


def calls_in_messages(demo, _):
    def answer(case):
        rename = lambda it: {"name": it["name"], "description": it["description"], "input_schema": it["parameters"]}
        tools = [rename(it["function"]) for it in case["tools"]]
        options = dict(model="any", messages=user(case), tools=tools, max_tokens=128, extra_body={"temperature": 0})
        of = lambda it: [(block.name, json.dumps(block.input)) for block in it.content if block.type == "tool_use"]
        found = demo.anthropic.messages.create(**options)
        assert found.stop_reason == ("tool_use" if of(found) else "end_turn"), found
        with demo.anthropic.messages.stream(**options) as stream:
            assert of(stream.get_final_message()) == of(found)
        return of(found)
    return count(answer)


def results_go_back(demo, _):
    case = CASES[0]
    options = dict(model="any", tools=case["tools"], temperature=0, max_tokens=64)
    call = demo.openai.chat.completions.create(messages=user(case), **options).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": '{"temperature": 21, "sky": "clear"}'}
    messages = user(case) + [call.model_dump(exclude_none=True), result]
    found = demo.openai.chat.completions.create(messages=messages, **options)
    assert found.choices[0].message.content, found
    return found.usage.prompt_tokens_details.cached_tokens, found.usage.prompt_tokens


def schemas_are_held(demo, _):
    properties = {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": ["name", "n"], "additionalProperties": False}
    messages = [{"role": "user", "content": "Name an item of the standard library."}]
    format = {"type": "json_schema", "json_schema": {"name": "item", "schema": schema, "strict": True}}
    found = demo.openai.chat.completions.create(
        model="any", messages=messages, response_format=format, temperature=0, max_tokens=200)
    check = lambda text: [json.loads(text)[key] for key in ("name", "n")]
    first = check(found.choices[0].message.content)
    found = demo.openai.responses.create(
        model="any", input=messages, temperature=0, max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "item", "schema": schema}})
    assert check(found.output_text) == first, found
    found = demo.anthropic.messages.create(
        model="any", messages=messages, max_tokens=200,
        extra_body={"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    texts = [it.text for it in found.content if it.type == "text"]
    # Another prompt: there are no thoughts unless they are asked for.
    assert len(texts) == 1 and 0 <= check(texts[0])[1] <= 99, found
    return first


CHECKS = [calls_in_chat, calls_in_responses, calls_in_messages, results_go_back, schemas_are_held]
