"""Renders published templates with moeflux and with Python's jinja2 as transformers sets it up.

    published_templates.py PROGRAM FOLDER [NAME..]        those of known families, or these; `-` is all

PROGRAM is the example `render_template` of crate moeflux-testing.
"""

import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import _compile_jinja_template


class Then(datetime.datetime):
    """The day of all prompts."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(0, datetime.timezone.utc)


chat_template_utils.datetime = Then


# Of families that moeflux runs, or whose answers it reads. Of the others, some differ: mostly where
# Python refuses to go through nothing, and moeflux goes through no items.
FAMILIES = ["gpt-oss", "MiniMax-M2", "GLM-4", "Hy3", "Kimi-K2", "Qwen", "DeepSeek-V3.1", "Mistral-Nemo"]


def m(role, content, **more):
    return {"role": role, "content": content, **more}


KINDS = {"a": {"type": "array", "description": "A <list>", "items": {"type": "string"}}, "b": {"type": "string", "enum": ["x", "y"], "default": "x"},
         "c": {"type": "object", "properties": {"d": {"type": "number"}, "e": {"type": ["integer", "null"]}}, "required": ["d"]},
         "f": {"oneOf": [{"type": "string", "description": "S"}, {"type": "number", "default": 3}]}, "g": {"type": "boolean", "default": False}}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a <city> & é", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Where"}, "days": {"type": "integer"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "kinds", "description": "All kinds", "parameters": {"type": "object", "properties": KINDS}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip


def call(arguments):
    return {"id": "functions.weather:0", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def conversations():
    gen = {"add_generation_prompt": True}
    user, system = m("user", " Why <b>?\n"), m("system", "Be brief. é")
    thought = m("assistant", "Because.", reasoning_content="I think.", thinking="I think.")
    yield from [([user], gen), ([user], {}), ([system, user], gen), ([system, user, thought, m("user", "So?")], gen), ([user, thought], {})]
    for more in [{"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"}, {"reasoning_effort": "medium"}]:
        yield [system, user], {**gen, **more}
    yield [system, user], {**gen, "tools": TOOLS}
    for arguments in [{"city": "Zürich", "days": 3, "deep": {"x": [None, True, 1.5]}}, '{"city": "Zürich"}']:
        for content in ["", "I look.", None]:
            for thoughts in [{}, {"reasoning_content": "I think.", "thinking": "I think."}]:
                calling = m("assistant", content, tool_calls=[call(arguments)], **thoughts)
                result = m("tool", 'sunny "é"', tool_call_id="functions.weather:0", name="weather")
                yield [user, calling, result], {**gen, "tools": TOOLS}
        calling = m("assistant", "", tool_calls=[call(arguments), call(arguments)])
        yield [user, calling, result, result, m("assistant", "Sunny."), m("user", "Thanks")], {**gen, "tools": TOOLS}
    yield [m("user", [{"type": "text", "text": "Look "}, {"type": "text", "text": "here"}])], gen
    yield [user, m("tool", "lost", tool_call_id="x")], gen


def main() -> None:
    program, folder, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or FAMILIES
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    cases = [{"messages": messages, "options": {**tokens, **options}} for messages, options in conversations()]
    n_wrong = n_texts = 0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        for path in sorted(folder.glob("*.jinja")):
            if not any(name in path.stem for name in names):
                continue
            template = _compile_jinja_template(path.read_text())
            done = subprocess.run([program, str(path), file.name], capture_output=True, text=True)
            ours = done.stdout.splitlines()
            if len(ours) != len(cases):
                print(f"FAILED {path.stem}: {done.stdout[:200]}")
                n_wrong += 1
                continue
            problems = []
            for case, line in zip(cases, ours):
                variables = {"tools": None, "documents": None, "add_generation_prompt": False, **case["options"]}
                try:
                    expected = template.render(messages=case["messages"], **variables)
                except Exception:  # noqa: BLE001  every refusal counts
                    expected = None
                n_texts += expected is not None
                if json.loads(line) != expected:
                    problems.append((case, expected, json.loads(line)))
            n_wrong += len(problems)
            print(f"{'ok ' if not problems else 'BAD'} {path.stem}: {len(cases) - len(problems)} of {len(cases)}", flush=True)
            for case, expected, found in problems[:2]:
                print(f"  {json.dumps(case, ensure_ascii=False)[:300]}\n  python  {expected!r}\n  moeflux {found!r}"[:1500])
    print(f"{n_texts} texts, {n_wrong} differ")
    sys.exit(n_wrong > 0)


main()
