#!/usr/bin/env python3
"""tokenizer.py --data DIR: the texts of corpus.py -> a byte-level BPE tokenizer of 8,192 entries and token streams.

Writes DIR/model/{tokenizer.json,tokenizer_config.json,chat_template.jinja,generation_config.json}, DIR/{pages,chats,heldout}.u16, DIR/chats.mask.u8, DIR/index.json.
Each document ends with <|endoftext|>. The mask is 1 where the loss of a chat counts: what the assistant says after the last question, with its <|im_end|>.
Every chat is compared with the chat template's rendering, byte for byte. Needs tokenizers and jinja2.
"""
import argparse, hashlib, json, shutil
from array import array
from pathlib import Path
import jinja2, jinja2.ext, jinja2.sandbox
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
N_ENTRIES = 8192
N_TRAVEL_BYTES_MAX = 50 << 20
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Added tokens that a decoder keeps when it skips special ones, as in Qwen's tokenizers.
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# How Qwen's tokenizers cut text before BPE: contractions, words, single digits, punctuation, line ends, spaces.
CUT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def train(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CUT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=N_ENTRIES - len(CONTROL) - len(MARKS), min_frequency=2, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), max_token_length=24)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    assert tokenizer.get_vocab_size() <= N_ENTRIES
    return tokenizer


def template():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((HERE / "chat_template.jinja").read_text(encoding="utf-8"))


def messages_of(text):
    """Reads a rendered chat back into messages and tools, without the template."""
    messages, tools = [], None
    for part in text.split("<|im_start|>")[1:]:
        role, body = part.split("\n", 1)
        body = body.removesuffix("<|im_end|>\n")
        if role == "system" and "# Tools\n" in body:
            before, listed = body.split("# Tools\n", 1)
            tools = [json.loads(line) for line in listed.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")]
            if not before:
                continue
            body = before.removesuffix("\n\n")
        if role == "user" and body.startswith("<tool_response>\n"):
            messages.append({"role": "tool", "content": body.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")})
            continue
        message = {"role": role, "content": body}
        if role == "assistant":
            if body.startswith("<think>\n"):
                message["reasoning_content"], message["content"] = body.removeprefix("<think>\n").split("\n</think>\n\n", 1)
            if message["content"].startswith("<tool_call>\n"):
                call = json.loads(message["content"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
                message["content"], message["tool_calls"] = "", [{"type": "function", "function": call}]
        messages.append(message)
    return messages, tools


def check_rendering(chats):
    rendered = template()
    for chat in chats:
        messages, tools = messages_of(chat["text"])
        got = rendered.render(messages=messages, tools=tools, add_generation_prompt=False)
        assert got == chat["text"], f"the template renders\n{got!r}\nwhere the chat is\n{chat['text']!r}"


def counted(text):
    """(from, to) of the characters where the loss counts: the assistant's turns with a think block, from behind the role's line to <|im_end|>."""
    spans, at, head = [], 0, "<|im_start|>assistant\n"
    while (at := text.find(head, at)) >= 0:
        start = at + len(head)
        at = text.index("<|im_end|>", start) + len("<|im_end|>")
        if text.startswith("<think>", start):
            spans.append((start, at))
    return spans


def mask_of(encoding, spans):
    mask = bytearray(len(encoding.ids))
    for start, end in spans:
        for i, (a, b) in enumerate(encoding.offsets):
            if a >= start and b <= end:
                mask[i] = 1
    return mask


def encoded(tokenizer, texts, batch=512):
    for i in range(0, len(texts), batch):
        yield from zip(texts[i:i + batch], tokenizer.encode_batch(texts[i:i + batch]))


def write_stream(path, tokenizer, texts, end):
    ids = array("H")
    for text, encoding in encoded(tokenizer, texts):
        ids.extend(encoding.ids)
        ids.append(end)
    path.write_bytes(ids.tobytes())
    return len(ids)


def write_chats(data, tokenizer, texts, end):
    ids, mask = array("H"), bytearray()
    for text, encoding in encoded(tokenizer, texts):
        ids.extend(encoding.ids)
        ids.append(end)
        mask += mask_of(encoding, counted(text)) + b"\0"
    (data / "chats.u16").write_bytes(ids.tobytes())
    (data / "chats.mask.u8").write_bytes(mask)
    assert len(ids) == len(mask)
    return len(ids), sum(mask)


def write_model(data, tokenizer):
    model = data / "model"
    model.mkdir(exist_ok=True)
    tokenizer.save(str(model / "tokenizer.json"), pretty=False)
    name = {tokenizer.token_to_id(t): t for t in CONTROL + MARKS}
    chat_template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    shutil.copyfile(HERE / "chat_template.jinja", model / "chat_template.jinja")
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": {
        str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": t in CONTROL} for i, t in sorted(name.items())},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None, "chat_template": chat_template, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 4096, "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}
    generation = {"do_sample": False, "eos_token_id": [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")],
                  "pad_token_id": tokenizer.token_to_id("<|endoftext|>")}
    for file, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (model / file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use instead of training one")
    args = parser.parse_args()
    data = args.data
    pages = [row["text"] for row in rows(data / "pages-train.jsonl")]
    heldout = [row["text"] for row in rows(data / "pages-heldout.jsonl")]
    chats = rows(data / "chats-train.jsonl")
    check_rendering(chats)
    talk = [chat["text"] for chat in chats]
    # Every fourth chat: their few sentences recur so often that more would crowd out the words of the pages.
    tokenizer = Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else train(pages + talk[::4])
    write_model(data, tokenizer)
    end = tokenizer.token_to_id("<|endoftext|>")
    for text in heldout + talk[:2000]:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text, "the tokenizer does not give the text back"
    corpus = json.loads((data / "corpus.json").read_text())
    n_chats, n_counted = write_chats(data, tokenizer, talk, end)
    index = {"entries": tokenizer.get_vocab_size(), "special": {t: tokenizer.token_to_id(t) for t in CONTROL + MARKS},
             "pages": [write_stream(data / "pages.u16", tokenizer, pages, end)], "chats": [n_chats], "chats_counted": n_counted,
             "heldout": [write_stream(data / "heldout.u16", tokenizer, heldout, end)], "documents": {"pages": len(pages), "chats": len(talk), "heldout": len(heldout)},
             **{k: corpus[k] for k in ("bytes", "lzma_bits_per_byte", "lzma_bits_per_byte_with_chats", "lzma_bits_per_byte_pages_only") if k in corpus}}
    index["bytes"]["heldout"] = len("".join(heldout).encode())
    travel = [data / name for name in ("pages.u16", "chats.u16", "chats.mask.u8", "heldout.u16", "questions.json", "toolcalls.json", "words.json")] + sorted((data / "model").iterdir())
    index["sha256"] = {str(f.relative_to(data)): hashlib.sha256(f.read_bytes()).hexdigest() for f in travel}
    index["travel_bytes"] = sum(f.stat().st_size for f in travel)
    assert index["travel_bytes"] < N_TRAVEL_BYTES_MAX, f"{index['travel_bytes']} bytes must travel, at most {N_TRAVEL_BYTES_MAX}"
    (data / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    print(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
