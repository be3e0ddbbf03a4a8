"""Renders conversations with transformers and writes `cases.json`, which the tests compare with.

    python make.py        (needs transformers; no torch)
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
TEMPLATES = HERE.parents[2] / "moeflux/src/text/template/cases"
NAMES = ["qwen3", "qwen3_5", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss", "minimax_m2", "hunyuan_3", "llama3"]


class Then(datetime.datetime):
    """The day of all prompts that have one."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(1735689599, datetime.timezone.utc)


chat_template_utils.datetime = Then


def m(role, content, **more):
    return {"role": role, "content": content, **more}


USER = m("user", "Why?")
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a <city>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
CALL = {"id": "functions.weather:0", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
CALLED = [m("user", "Weather?"), m("assistant", "", tool_calls=[CALL]),
          m("tool", "sunny", name="weather", tool_call_id="functions.weather:0")]

GEN = {"add_generation_prompt": True}
CASES = []
for last in ["Because", "Because ", " Because\n\n", "é 語 ", "", "<think>\nI", "<think>\nI add.\n</think>\n\nFo"]:
    CASES += [(name, [USER, m("assistant", last)], {"continue_final_message": True}) for name in NAMES]
for thoughts in ["I add", "\nI add "]:
    messages = [USER, m("assistant", "", reasoning_content=thoughts)]
    # transformers does not know that gpt-oss calls it `thinking`.
    CASES += [(name, messages, {"continue_final_message": "reasoning_content"}) for name in NAMES if name != "gpt_oss"]
for name in NAMES:
    for messages in [[USER], [m("system", "S"), USER, m("assistant", "A", reasoning_content="R"), m("user", "Go on.")]]:
        for options in [GEN, {}, {**GEN, "enable_thinking": False}, {**GEN, "enable_thinking": True}, {**GEN, "tools": [TOOL]}]:
            CASES.append((name, messages, options))
    if name != "deepseek_v3":
        CASES.append((name, CALLED, {**GEN, "tools": [TOOL]}))


def case(name, messages, options):
    source = (TEMPLATES / f"{name}.jinja").read_text()
    found = {"template": name, "messages": messages, "options": options}
    try:
        options = {**options, "bos_token": "<s>"}
        # Both names, as templates know one or the other.
        named = [{**it, "thinking": it["reasoning_content"]} if "reasoning_content" in it else it for it in messages]
        found["expected"] = render_jinja_template([named], chat_template=source, **options)[0][0]
    except Exception as error:
        found["refused"] = type(error).__name__
    return found


lines = ",\n".join(json.dumps(case(*it), ensure_ascii=False) for it in CASES)
(HERE / "cases.json").write_text(f"[\n{lines}\n]\n")
