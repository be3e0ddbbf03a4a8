"""What the scripted model of loops.py says, in the format of its template.

    python3 scenes.py FORMAT SCRIPT.json        writes the script for script_model.py

FORMAT is a key of FORMATS. A mark in a text says where a token ends: only in strings of
arguments, and where nothing is a call yet (script_model.py says why).
"""
import dataclasses
import json
import sys

MARK = "¦"
# What stands between text and calls, before them, between two, and behind them.
FORMATS = {
    # The grammar of a call without marks around all of them leaves no token that goes on behind
    # its end.
    "hermes": ("\n", "", f"{MARK}\n", ""),
    "qwen_xml": ("\n\n", "", f"{MARK}\n", ""),
    "glm_4_5": ("\n", "", f"{MARK}\n", ""),
    "deepseek_v3_1": ("", "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "kimi_k2": ("", "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
}
# What codex calls its shell (0.169.0).
CODEX_TOOL = "exec_command"
CODEX_ASK = "Make the file."
CODEX_COMMAND = f"sh -c 'echo moeflux > ma{MARK}de.txt && cat ma{MARK}de.txt'"
CODEX_FILE = ("made.txt", "moeflux\n")
CODEX_ANSWER = "The file made.txt says \"moeflux\", in one line."
CODEX_ASK_AGAIN = "What did you make?"
CODEX_ANSWER_AGAIN = "I made a file of seven letters, as you can read above."


def tool(name, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": f"The tool {name}.", "parameters": parameters}


TOOLS = [
    tool("look_up", {"place": {"type": "string"}, "days": {"type": "integer"},
                     "exact": {"type": "boolean"}}),
    tool("write_note", {"path": {"type": "string"}, "text": {"type": "string"}, "options": {
        "type": "object", "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "owner": {"type": "object", "properties": {
                "name": {"type": "string"}, "id": {"type": "number"}}}}}}),
    tool("clock", {}),
]


@dataclasses.dataclass
class Turn:
    """What the model says at once: text, then calls, which are names with arguments."""
    text: str
    calls: list = dataclasses.field(default_factory=list)
    # One for each call.
    results: list = dataclasses.field(default_factory=list)

    def expected(self):
        return self.text, [(name, plain(written(arguments))) for name, arguments in self.calls]


# Each question with the turns that follow. Questions are asked in this order, in one conversation.
SCENES = {
    "What is the weather?": [
        Turn("I look it up.",
             [("look_up", {"place": f"Par{MARK}is, Fra{MARK}nce", "days": 3, "exact": True})],
             ['{"sky": "clear", "degrees": 21}']),
        Turn("It is clear in Paris: 21 degrees."),
    ],
    "Write what is hard to quote.": [
        Turn("", [("write_note", {
            "path": f"C:\\no{MARK}tes\\\"a b\".txt",
            "text": f"One \"quo{MARK}ted\" word,\n\ttwo \\n lines: {{\"a\": [1, 2]}}"
                    f"{MARK} é語😀 </b> <x>{MARK} }}}} ]]\n",
            "options": {"tags": [f"a{MARK}\"b\"", "{}", "日本"],
                        "owner": {"name": f"O'{MARK}Neil <&>", "id": -2.5}}})],
             ["Written:\n\t\"a b\" {1} é語😀 </tool_call> <|x|>"]),
        Turn("I wrote it, with \"quotes\" and {braces}."),
    ],
    "Two notes at once.": [
        Turn("", [("write_note", {"path": f"first{MARK}.txt", "text": f"The first{MARK} text.",
                                  "options": {"tags": []}}),
                  ("look_up", {"place": f"Rome {MARK}or Oslo", "days": 12, "exact": False})],
             ["The first result.", "The second result."]),
        Turn("Both are done."),
    ],
    "One after the other.": [
        Turn("First I ask for the time.\nThen I see.", [("clock", {})], ["12:34"]),
        Turn("", [("look_up", {
            "place": f"here at {MARK}12:34", "days": 1, "exact": True})], ["Rain."]),
        Turn("At last I write it down:", [("write_note", {
            "path": f"last{MARK}.md", "text": f"12:34, {MARK}rain", "options": {}})], [""]),
        Turn("It rains at 12:34, as the note says."),
    ],
    "No call is needed.": [Turn("Then I call nothing: 1 < 2, {\"name\": \"clock\"}.")],
}


def spoken():
    """The questions with what follows, for clients that run tools on their own."""
    def of(ask, turns):
        calls = [call for turn in turns for call in turn.expected()[1]]
        results = [it for turn in turns for it in turn.results]
        return {"ask": ask, "calls": calls, "results": results, "answer": turns[-1].text}
    return {"tools": TOOLS, "asks": [of(*it) for it in SCENES.items()]}


def plain(text):
    return text.replace(MARK, "")


def written(value):
    return json.dumps(value, ensure_ascii=False)


def call(format, name, arguments, number):
    raw = lambda it: it if isinstance(it, str) else written(it)
    if format == "hermes":
        body = f'{{"name": "{name}", "arguments": {written(arguments)}}}'
        return f"<tool_call>\n{body}\n</tool_call>"
    if format == "qwen_xml":
        body = [f"<parameter={key}>\n{raw(it)}\n</parameter>\n" for key, it in arguments.items()]
        return f"<tool_call>\n<function={name}>\n{''.join(body)}</function>\n</tool_call>"
    if format == "glm_4_5":
        body = [f"<arg_key>{key}</arg_key>\n<arg_value>{raw(it)}</arg_value>\n"
                for key, it in arguments.items()]
        return f"<tool_call>{name}\n{''.join(body)}</tool_call>"
    if format == "deepseek_v3_1":
        return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{written(arguments)}<｜tool▁call▁end｜>"
    begin, end = "<|tool_call_begin|>", "<|tool_call_end|>"
    return f"{begin}functions.{name}:{number}<|tool_call_argument_begin|>{written(arguments)}{end}"


def turn_text(format, turn, number):
    """One text, or the pieces of one with calls, of which `number` came before."""
    if not turn.calls:
        return turn.text
    before, begin, between, end = FORMATS[format]
    calls = [call(format, *it, number + place) for place, it in enumerate(turn.calls)]
    text = begin + between.join(calls) + end
    if turn.text:
        # The opening marker is cut, too.
        text = f"{turn.text[:3]}{MARK}{turn.text[3:]}{before}{text[:4]}{MARK}{text[4:]}"
    return text.split(MARK)


def scene(format, turns, number, **more):
    """Turns are counted in results."""
    texts = []
    for turn in turns:
        texts += [turn_text(format, turn, number)] + [None] * (len(turn.calls) - 1)
        number += len(turn.calls)
    return {"turns": texts, **more}


def script(format):
    scenes, number = {}, 0
    for ask, turns in SCENES.items():
        results = [it for turn in turns for it in turn.results]
        scenes[ask] = scene(format, turns, number, results=results)
        number += len(results)
    codex = [Turn("I make it now.", [(CODEX_TOOL, {"cmd": CODEX_COMMAND})]), Turn(CODEX_ANSWER)]
    scenes[CODEX_ASK] = scene(format, codex, 0, parts=["moeflux"])
    scenes[CODEX_ASK_AGAIN] = scene(format, [Turn(CODEX_ANSWER_AGAIN)], 0)
    return {"plain": "No tools are offered.", "turns": ["This is no scene."], "scenes": scenes,
            "format": format, "context": 65536, "heads": 1}


if __name__ == "__main__":
    with open(sys.argv[2], "w") as file:
        json.dump(script(sys.argv[1]), file)
