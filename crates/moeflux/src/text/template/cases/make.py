"""Renders the templates of this folder, and single expressions, with Python's jinja2 as
transformers sets it up, and writes `cases.json`, which the tests compare minijinja with.

    python make.py        (needs jinja2 >= 3.1.6 and transformers)
"""
import datetime
import json
import pathlib
import re

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).parent
NOW = 1735689599

TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a <city> & é 語 \"q\" it's",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]}}}
CALL_OBJECT = {"id": "functions.weather:0", "type": "function",
               "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5], "at": {"x": None}, "n": 3, "ok": True}}}
CALL_TEXT = {"id": "functions.weather:0", "type": "function",
             "function": {"name": "weather", "arguments": "{\"city\": \"Zürich\"}"}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


HELLO = [m("user", "Hello\n")]
SYSTEM = [m("system", "Be brief. "), m("user", " Hi <b>")]
THOUGHT = [m("system", "S"), m("user", "1+1?"), m("assistant", "<think>\nadd\n</think>\n\n2"), m("user", "2+2?"),
           m("assistant", "<think>\nadd again\n</think>\n\n4")]
REASONED = [m("user", "1+1?"), m("assistant", "2", reasoning_content="\nadd\n", thinking="\nadd\n")]


def tools(call, content):
    return [m("user", "Weather?"), m("assistant", content, tool_calls=[call, call]), m("tool", "sunny", tool_call_id="a"),
            m("tool", "rain", tool_call_id="b"), m("assistant", "Mixed."), m("user", "Thanks")]


PARTS = [m("user", [{"type": "text", "text": "Look "}, {"type": "image", "image": "x"}, {"type": "text", "text": "here"}])]
GEN = {"add_generation_prompt": True}
NO_THINK = {"add_generation_prompt": True, "enable_thinking": False}
THINK = {"add_generation_prompt": True, "enable_thinking": True}
WITH_TOOLS = {"add_generation_prompt": True, "tools": [TOOL, TOOL]}
LATE_SYSTEM = [m("user", "a"), m("system", "b")]

CONVERSATIONS = []
for name in ["qwen3", "qwen3_5", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss", "minimax_m2", "hunyuan_3"]:
    call = CALL_TEXT if name == "deepseek_v3" else CALL_OBJECT
    content = None if name == "deepseek_v3" else "Let me look."
    for messages, options in [(HELLO, {}), (HELLO, GEN), (HELLO, NO_THINK), (HELLO, THINK), (SYSTEM, GEN), (THOUGHT, {}),
                              (THOUGHT, NO_THINK), (REASONED, {}), (tools(call, content), WITH_TOOLS), (SYSTEM, WITH_TOOLS)]:
        CONVERSATIONS.append((name, messages, options))
    if name != "deepseek_v3":
        CONVERSATIONS.append((name, PARTS, GEN))
CONVERSATIONS.append(("qwen3_5", LATE_SYSTEM, {}))

# Parameters of every kind that the template of gpt-oss writes in TypeScript.
KINDS = {"type": "function", "function": {"name": "f", "description": "All kinds", "parameters": {"type": "object", "required": ["a", "o"], "properties": {
    "a": {"type": "array", "description": "A list", "items": {"type": "string"}, "nullable": True}, "b": {"type": "array", "items": {"type": "integer"}},
    "c": {"type": "array"}, "d": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}, "required": ["x"]}},
    "e": {"type": ["string", "null"]}, "g": {"oneOf": [{"type": "string", "description": "S", "default": "s"}, {"type": "number"}]},
    "h": {"type": "string", "enum": ["x", "y"], "default": "x"}, "i": {"type": "boolean", "default": False}, "j": {}, "k": {"type": "object"},
    "o": {"type": "object", "properties": {"p": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, "q": {"type": "integer"}}}}}}}
EMPTY = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
CALLED = [m("system", "S"), m("user", "Weather?"), m("assistant", "", thinking="I look.", tool_calls=[CALL_OBJECT]), m("tool", "sunny \"é\"", tool_call_id="a")]
for more in [[], [m("assistant", "Sunny."), m("user", "And now?")], [m("assistant", "", thinking="Again.", tool_calls=[CALL_OBJECT])]]:
    CONVERSATIONS.append(("gpt_oss", CALLED + more, {**GEN, "tools": [TOOL, KINDS, EMPTY]}))
CONVERSATIONS.append(("gpt_oss", HELLO, {**GEN, "reasoning_effort": "high", "builtin_tools": ["python", "other"], "model_identity": "Me."}))
CONVERSATIONS.append(("gpt_oss", [m("user", "a"), m("tool", "b")], GEN))
CONVERSATIONS.append(("gpt_oss", [m("user", "a"), m("assistant", "T", thinking="R", tool_calls=[CALL_OBJECT])], {}))
CONVERSATIONS.append(("gpt_oss", HELLO, {**GEN, "tools": [{"type": "function", "function": {"name": "f"}}]}))
for effort in ["high", "medium"]:
    CONVERSATIONS.append(("hunyuan_3", REASONED + HELLO, {**GEN, "reasoning_effort": effort}))
CONVERSATIONS.append(("qwen3_5", [], {}))
LLAMA_CALLED = [m("user", "Weather?"), m("assistant", None, tool_calls=[CALL_OBJECT]), m("tool", "sunny \"é\"", tool_call_id="a")]
SEARCHED = {"id": "a", "type": "function", "function": {"name": "brave_search", "arguments": {"query": "Zürich", "n": "3"}}}
for messages, options in [(HELLO, {}), (SYSTEM, GEN), (tools(CALL_OBJECT, ""), WITH_TOOLS), (SYSTEM, WITH_TOOLS), ([m("system", "S")], WITH_TOOLS)]:
    CONVERSATIONS.append(("llama3", messages, options))
for options in [WITH_TOOLS, {**WITH_TOOLS, "tools_in_user_message": False, "date_string": "1 May 2025"}]:
    CONVERSATIONS.append(("llama3", LLAMA_CALLED + [m("assistant", "Sunny."), m("user", "Thanks")], options))
CONVERSATIONS.append(("llama3", [m("user", "Weather?"), m("assistant", None, tool_calls=[SEARCHED])], {"builtin_tools": ["brave_search", "code_interpreter"]}))

# One construct each; `x` is a table of values.
X = {"s": " a,b,,c \n", "n": 3, "f": 2.5, "t": True, "none": None, "list": [3, 1, 2], "dict": {"b": 1, "a": [1, "é"], "items": 5},
     "words": ["b", "a", "B"], "empty": [], "u": "ÉÀ語", "nested": [{"k": "v", "r": "u"}, {"k": "w", "r": "a"}, {"k": "x"}]}
EXPRESSIONS = r"""
{{ x.list[::-1] }}|{{ x.list[1:] }}|{{ x.list[:-1] }}|{{ x.list[-1] }}|{{ x.list[-2:] }}|{{ x.list[::2] }}|{{ x.s[::-1] }}|{{ x.u[1:2] }}
{{ x.s.strip() }}|{{ x.s.split(',') }}|{{ x.s.split() }}|{{ x.s.split(',', 1) }}|{{ x.s.rsplit(',', 1) }}|{{ x.s.strip().split(',')[-1] }}
{{ 'abcabc'.replace('b', 'x', 1) }}|{{ 'abc'.find('c') }}|{{ 'abc'.rfind('z') }}|{{ 'a-b'.partition('-')[2] }}|{{ 'a-b-c'.rpartition('-')[0] }}|{{ 'abc'.index('b') }}
{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ 'abc'.removeprefix('z') }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'.rstrip('x') }}
{{ 'abc'.startswith(('x', 'a')) }}|{{ 'abc'.endswith('c') }}|{{ 'AbC'.lower() }}|{{ 'ab cd'.title() }}|{{ 'ab cd'.capitalize() }}|{{ u }}|{{ 'a\nb'.splitlines() }}
{{ ','.join(x.words) }}|{{ x.words | join('-') }}|{{ x.list | sort }}|{{ x.words | sort }}|{{ x.list | reverse | list }}|{{ x.list | first }}|{{ x.list | last }}
{{ x.dict }}|{{ x.dict.items() | list }}|{{ x.dict.keys() | list }}|{{ x.dict.values() | list }}|{{ x.dict.get('zz') }}|{{ x.dict.get('zz', 7) }}
{% for k, v in x.dict.items() %}{{ k }}={{ v }};{% endfor %}|{% for k, v in x.dict | dictsort %}{{ k }};{% endfor %}|{% for k in x.dict %}{{ k }};{% endfor %}
{{ x.dict | tojson }}|{{ x | tojson(indent=2) }}|{{ x.dict | tojson(sort_keys=true) }}|{{ x.u | tojson(ensure_ascii=true) }}|{{ x.list | tojson(separators=(',', ':')) }}
{{ x.empty | tojson }}|{{ {} | tojson(indent=4) }}|{{ [[]] | tojson(indent=1) }}|{{ '<&>\u007f\u0001"\\' | tojson }}|{{ x.none | tojson }}|{{ x.t | tojson }}
{{ 1e16 | tojson }}|{{ 0.00001 | tojson }}|{{ 1.0 | tojson }}|{{ 123456789012345680.0 | tojson }}|{{ 0.1 | tojson }}|{{ -1.5e-7 | tojson }}|{{ 10 | tojson }}
{{ x.none }}|{{ x.t }}|{{ x.f }}|{{ 1.0 }}|{{ true }}|{{ True }}|{{ None }}|{{ none }}|{{ x.missing }}|{{ [1, 'a', none, true] }}|{{ (1, 2) }}|{{ 'a' ~ 1 ~ none }}
{{ x.s is string }}|{{ x.s is iterable }}|{{ x.s is sequence }}|{{ x.dict is mapping }}|{{ x.dict is sequence }}|{{ x.list is iterable }}|{{ x.n is number }}|{{ x.n is iterable }}|{{ x.missing is iterable }}
{{ x.missing is defined }}|{{ x.none is none }}|{{ x.t is true }}|{{ x.t is boolean }}|{{ x.n is integer }}|{{ x.f is float }}|{{ x.missing is undefined }}|{{ x.n is divisibleby 3 }}|{{ x.n is odd }}
{{ x.n + 1 }}|{{ x.n / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 2 ** 3 }}|{{ x.n * 'ab' }}|{{ 'ab' * 2 }}|{{ x.list + [9] }}|{{ x.n | string + 'a' }}|{{ '5' | int + 1 }}
{{ 1 < x.n < 5 }}|{{ 3 in x.list }}|{{ 'a' not in x.words }}|{{ 'k' in x.nested[0] }}|{{ not x.empty }}|{{ x.n == 3.0 }}|{{ x.none or 'd' }}|{{ x.s and 1 }}|{{ 1 if x.empty }}|
{% for m in x.nested if m.r == 'u' %}{{ m.k }}{% endfor %}|{{ x.nested | selectattr('r', 'equalto', 'u') | map(attribute='k') | list }}|{{ x.nested | rejectattr('r') | list | length }}|{{ x.nested | selectattr('r', 'defined') | list | length }}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}|{% for i in [] %}x{% else %}none{% endfor %}|{{ range(3) | list }}|{{ range(1, 8, 3) | list }}
{% for i in x.list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o', 'e') }};{% endfor %}
{% set ns = namespace(a=1, b=[]) %}{% for i in x.list %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}|{% set y %}block{{ x.n }}{% endset %}{{ y | upper }}
{% macro f(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, c='q') }}|{{ f(1, 5) | length }}|{% macro g() %}[{{ caller() }}]{% endmacro %}{% call g() %}in{% endcall %}
{% if x.n == 1 %}a{% elif x.n == 3 %}b{% else %}c{% endif %}|{{ 'y' if x.t else 'n' }}|{{ x.missing | default('d') }}|{{ '' | default('d', true) }}|{{ x.none | default('d') }}|{{ x.none | d('e', true) }}
{{ x.s | trim }}|{{ x.s | length }}|{{ x.u | length }}|{{ 'a<b' | escape }}|{{ 'a b' | replace(' ', '_') }}|{{ 'x' | indent(2, true) }}|{{ 'a\nb' | indent(2) }}|{{ x.f | round | int }}|{{ x.list | sum }}|{{ x.list | max }}
{{ '%s-%d' | format('a', 3) }}|{{ '%.2f' | format(1.5) }}|{{ '{} {}'.format('a', 1) }}|{{ "%s" % 'z' }}|{{ x.words | unique | list }}|{{ x.nested | groupby('r') | length if false else '' }}|{% for g in [{'k': 'X', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'x', 'v': 3}] | groupby('k') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}|{% for key, items in [{'k': 'b'}, {'k': 'B'}, {}] | groupby('k', case_sensitive=true, default='z') %}{{ key }}{{ items }}{% endfor %}|{{ 'a' 'b' }}
{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|{% generation %}kept {{ x.n }}{% endgeneration %}|{%- generation -%} a {%- endgeneration -%} |{# comment #}
{% raw %}{{ raw }}{% endraw %}|{{ dict(a=1, b='c') }}|{% with z = 5 %}{{ z }}{% endwith %}|{% filter upper %}up{% endfilter %}|{{ x['n'] }}|{{ x["list"][0] }}|{{ {'a': {'b': 1}}.a.b }}|{{ x.words[0].upper() }}
    {% if true %}
  indented
    {% endif %}
tail {{ x.n }}   
{%+ if true %} plus {% endif +%}
{{ x.dict['items'] }}|{{ x.list.index(2) }}|{{ x.list.count(3) }}|{{ 'aXbX'.count('X') }}|{{ 'ab'.isdigit() }}|{{ '12'.isdigit() }}|{{ 'ab'.isalpha() }}|{{ '{"a": 1}' | length }}|{{ x.t | int }}|{{ x.n | float }}|{{ x.t | string }}
{{ x.nested | map(attribute='r', default='-') | join(',') }}|{{ x.words | map('upper') | join }}|{{ x.list | select('gt', 1) | list }}|{{ x.list | reject('odd') | list }}|{{ x.dict | items | list | length }}|{{ x.dict | length }}|{{ x.list | batch(2) | list }}
{{ x.missing.deeper }}
{{ x.n.split() }}
{{ raise_exception('Only ' ~ x.n ~ ' allowed') }}
{{ x.missing | tojson }}
{{ 'a' + 1 }}
{{ x.dict.nothing() }}
{% for a in x.n %}{% endfor %}
"""


def render(source, variables):
    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    try:
        template = _compile_jinja_template(source)
        return {"expected": template.render(**{"strftime_now": strftime_now, **variables})}
    except Exception as error:  # noqa: BLE001  every refusal counts
        return {"refused": str(error)}


TOKENS = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}


def main():
    conversations = []
    for name, messages, options in CONVERSATIONS:
        source = (HERE / f"{name}.jinja").read_text()
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False, **TOKENS, **options}
        conversations.append({"template": name, "messages": messages, "options": options, **render(source, variables)})
    block = EXPRESSIONS.strip("\n")
    start = block.index("    {% if true %}")
    end = block.index("{{ x.dict['items'] }}")
    sources = []
    for line in block[:start].strip("\n").split("\n") + block[end:].split("\n"):
        # Macros and variables reach over the bars of a line.
        sources += [line] if re.search("macro|set ", line) else re.split(r"(?<=\})\|(?=\{)", line)
    sources.append(block[start:end])
    expressions = [{"source": source, **render(source, {"x": X})} for source in sources]
    cases = {"now_seconds": NOW, "x": X, "tokens": TOKENS, "conversations": conversations, "expressions": expressions}
    # A line for each case.
    lists = {key: cases.pop(key) for key in ["conversations", "expressions"]}
    text = json.dumps(cases, ensure_ascii=False)[:-1]
    for key, items in lists.items():
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
        text += f',\n"{key}": [\n{lines}\n]'
    (HERE / "cases.json").write_text(text + "}\n")


main()
