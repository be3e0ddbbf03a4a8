"""Compares what moeflux reads in answers in harmony with what openai-harmony reads.

    harmony.py TOKENIZER.JSON WORK
"""

import base64
import json
import os
import sys
from pathlib import Path

CASES = Path(__file__).parents[2] / "crates/moeflux-chat/src"
SPECIAL_FROM = 199_998

# Where openai-harmony reads something else, and why moeflux does not.
DIFFERENCES = {
    "a message without an end": "It takes the next header as text; nobody says that to a user.",
    "a channel behind a message without an end and a role": "As above.",
    "no header at all": "It gives up; a model that writes no header says something all the same.",
    "text that begins like a header": "As above.",
    "text behind the end of a message": "It gives up; the text goes on.",
    "a text that speaks of markers": "It gives up; it knows tokens, and this table has text only.",
    "a text that ends with a marker": "It shows the marker.",
    "a call whose strings have markers in them": "It gives up; it knows tokens.",
    "a call that lacks its brackets": "It hands out arguments that are no JSON; only a bracket is missing.",
    "a message to a tool that is no call": "It hands out arguments that are no JSON.",
    "a whole call without an end": "It takes the next header as a part of the arguments.",
    "text behind a call": "It takes the text as a part of the arguments.",
    "arguments that are no JSON before another message": "It hands out arguments that are no JSON.",
    "cut in the first header [cut]": "It gives up; nothing was said.",
    "cut behind the first marker [cut]": "As above.",
    "cut in a later header [cut]": "It gives up, and the thought is lost.",
    "cut behind the header of a call [cut]": "It is not told that a limit ended the answer.",
    "cut in a call [cut]": "As above.",
}


def encoding(tokenizer: Path, work: Path):
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    bytes_ = {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
    ranks = json.loads(tokenizer.read_text())["model"]["vocab"]
    rows = sorted((rank, bytes(bytes_[it] for it in text)) for text, rank in ranks.items())
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in rows if rank < SPECIAL_FROM]
    (work / "o200k_base.tiktoken").write_text("".join(lines))
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(work)
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def theirs(harmony, text: str, offered: list[str]) -> list[str]:
    """In the words of the table."""
    from openai_harmony import Role

    tokens = harmony.encode(text, allowed_special="all")
    try:
        messages = harmony.parse_messages_from_completion_tokens(tokens, role=Role.ASSISTANT, strict=False)
    except Exception as error:  # noqa: BLE001  whatever it refuses
        return [f"refused: {error}"]
    said = []
    for message in messages:
        content = "".join(part.text for part in message.content)
        name = (message.recipient or "").removeprefix("functions.")
        if message.author.role != Role.ASSISTANT or not content and name not in offered:
            continue
        kind = "call" if name in offered else "thought" if message.channel == "analysis" else "text"
        has_said = any(it[0] == kind for it in said)
        if kind == "call":
            said.append((kind, f"{name} {content or '{}'}"))
        elif said and said[-1][0] == kind:
            said[-1] = (kind, said[-1][1] + "\n\n" + content)
        else:
            said.append((kind, "\n\n" * has_said + content))
    return [f"{kind} {text if kind == 'call' else json.dumps(text, ensure_ascii=False)}" for kind, text in said]


def main() -> None:
    harmony = encoding(Path(sys.argv[1]), Path(sys.argv[2]))
    offered = [tool["name"] for tool in json.loads((CASES / "calls/cases/tools.json").read_text())]
    cases = (CASES / "answer_reader/channels/cases.txt").read_text().split("=== ")[1:]
    n_equal, n_wrong = 0, 0
    for case in cases:
        title, case = case.split("\n", 1)
        text, ours = case.split("---\n", 1)
        ours = [line for line in ours.strip().split("\n") if line]
        found = theirs(harmony, text.removesuffix("\n"), offered)
        n_equal += found == ours
        if (found == ours) == (title in DIFFERENCES):
            n_wrong += 1
            print(f"{title}\n  ours   {ours}\n  theirs {found}")
    unknown = DIFFERENCES.keys() - {case.split("\n", 1)[0] for case in cases}
    print(f"{len(cases)} answers, {n_equal} read alike, {len(cases) - n_equal} not; {n_wrong} without a reason")
    sys.exit(n_wrong > 0 or bool(unknown))


main()
