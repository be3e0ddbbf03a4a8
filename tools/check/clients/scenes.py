"""What the scripted model of loops.py says, in the format of its template.

    python3 scenes.py FORMAT SCRIPT.json        writes the script for script_model.py

FORMAT is "hermes" or "qwen_xml". A mark in a text says where a token ends: only in strings of
arguments, and where nothing is a call yet (script_model.py says why).
"""
import dataclasses
import json
import sys

MARK = "¦"
FORMATS = ["hermes", "qwen_xml"]
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


def call(format, name, arguments):
    if format == "hermes":
        body = f'{{"name": "{name}", "arguments": {written(arguments)}}}'
    else:
        raw = lambda it: it if isinstance(it, str) else written(it)
        body = [f"<parameter={key}>\n{raw(it)}\n</parameter>\n" for key, it in arguments.items()]
        body = f"<function={name}>\n{''.join(body)}</function>"
    return f"<tool_call>\n{body}\n</tool_call>"


def turn_text(format, turn):
    """One text, or the pieces of one with calls."""
    if not turn.calls:
        return turn.text
    # The grammar of a call leaves no token that goes on behind its end.
    calls = f"{MARK}\n".join(call(format, name, arguments) for name, arguments in turn.calls)
    if turn.text:
        # The opening marker is cut, too.
        before = turn.text + ("\n" if format == "hermes" else "\n\n")
        calls = before[:3] + MARK + before[3:] + calls.replace("_call>", f"_{MARK}call>", 1)
    return calls.split(MARK)


def scene(format, turns, **more):
    """Turns are counted in results."""
    texts = []
    for turn in turns:
        texts += [turn_text(format, turn)] + [None] * (len(turn.calls) - 1)
    return {"turns": texts, **more}


def script(format):
    scenes = {ask: scene(format, turns, results=[it for turn in turns for it in turn.results])
              for ask, turns in SCENES.items()}
    codex = [Turn("I make it now.", [(CODEX_TOOL, {"cmd": CODEX_COMMAND})]), Turn(CODEX_ANSWER)]
    scenes[CODEX_ASK] = scene(format, codex, parts=["moeflux"])
    scenes[CODEX_ASK_AGAIN] = scene(format, [Turn(CODEX_ANSWER_AGAIN)])
    return {"plain": "No tools are offered.", "turns": ["This is no scene."], "scenes": scenes,
            "format": format, "context": 65536, "heads": 1}


if __name__ == "__main__":
    with open(sys.argv[2], "w") as file:
        json.dump(script(sys.argv[1]), file)
