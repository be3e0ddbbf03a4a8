#!/usr/bin/env python3
"""corpus.py --data DIR [--docs DIR]: the Rust toolchain's HTML documentation -> plain text pages and chats.

Writes DIR/pages-train.jsonl, DIR/pages-heldout.jsonl, DIR/chats-train.jsonl, DIR/questions.json, DIR/toolcalls.json,
DIR/corpus.json (counts and the LZMA baseline), and heldout.txt beside this file: each held-out page and the token that ends it.
No line of more than 20 characters, and outside code no such sentence, stands twice in the pages; lines that differ only in digits or in the name of a number type count as the same line.
A page is held out if sha256 of its path says so. Needs lxml. Knows nothing of tokens.
"""
import argparse, hashlib, json, lzma, os, re, subprocess
from multiprocessing import Pool
from pathlib import Path
from lxml import html as lxml_html
import questions, toolcalls

HERE = Path(__file__).resolve().parent

# Folder of the documentation, in the order in which the first occurrence of a line is kept, and its licence.
# embedded-book is left out: its prose is CC-BY-SA-4.0 by its own front page.
PARTS = {
    "book": "MIT OR Apache-2.0", "reference": "MIT OR Apache-2.0", "rust-by-example": "MIT OR Apache-2.0",
    "std": "MIT OR Apache-2.0", "alloc": "MIT OR Apache-2.0", "core": "MIT OR Apache-2.0", "proc_macro": "MIT OR Apache-2.0",
    "nomicon": "MIT OR Apache-2.0", "edition-guide": "MIT OR Apache-2.0", "cargo": "MIT OR Apache-2.0",
    "error_codes": "MIT OR Apache-2.0", "rustc": "MIT OR Apache-2.0", "rustdoc": "MIT OR Apache-2.0",
    "clippy": "MIT OR Apache-2.0", "style-guide": "MIT OR Apache-2.0", "unstable-book": "MIT OR Apache-2.0",
}
# Copies of the whole book, other languages, superseded editions, and 39,000 pages of vendor intrinsics that differ in a digit.
LEFT_OUT = re.compile(
    r"(^|/)(print|toc|404|all|SUMMARY)\.html$|^rust-by-example/(es|ja|ko|zh)/|^book/(first-edition|second-edition|2018-edition)/"
    r"|^book/(?!ch\d|appendix|title|foreword)|^(std|core)/(arch|core_arch)/.|^core/core_simd/|^core/legacy_int_modules/|/sidebar-items|^reference/test-summary")

# Pages that give questions but no text: they repeat another page with the name of a number type, or with vector widths, exchanged.
# Pages of core and alloc that std has as well go the same way.
NO_TEXT = re.compile(
    r"^(std|core)/primitive\.(i8|i16|i64|i128|isize|u16|u32|u64|u128|usize|f16|f32|f128)\.html|^(std|core)/(f16|f32|f128|[iu]\d+)/|^(std|core)/(simd|intrinsics)/"
    r"|/atomic/struct\.Atomic(I|U\d)|/type\.Nonzero|^cargo/CHANGELOG")

N_CHARS_UNIQUE = 20      # a longer line stands once in the whole corpus
HELDOUT_OF = 10_000      # a page is held out if sha256(path) modulo this ...
HELDOUT_BELOW = 190       # ... is below this; chosen for a held-out text just below 100 kB
N_BYTES_HELDOUT_MAX = 100_000
N_CHARS_PAGE_MIN = 80    # what is left of a page after deduplication is dropped below this

BLOCK = {"address", "article", "blockquote", "body", "dd", "details", "div", "dl", "dt", "figure", "footer", "form", "h1", "h2", "h3", "h4",
         "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
         "tr", "ul"}
SKIP_TAGS = {"script", "style", "button", "nav", "rustdoc-toolbar", "svg", "noscript", "textarea", "input", "form"}
SKIP_CLASSES = {"anchor", "src", "srclink", "doc-anchor", "test-arrow", "rightside", "sub-heading", "rustdoc-breadcrumbs", "hideme", "since",
                "buttons", "tooltip", "item-info", "stab", "rule", "rule-link", "boring", "footnote-definition-label", "grammar-toggle", "railroad"}
SKIP_IDS = ("synthetic-implementations", "blanket-implementations", "implementors", "foreign-impls", "deref-methods", "copy-path")


def classes(element):
    return set((element.get("class") or "").split())


def skipped(element):
    if not isinstance(element.tag, str) or element.tag in SKIP_TAGS:
        return True
    if SKIP_CLASSES & classes(element):
        return True
    return (element.get("id") or "").startswith(SKIP_IDS)


def squeeze(text):
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip()


def inline(element):
    """The text of one element with `code` in backticks; without the element's tail."""
    if skipped(element):
        return ""
    parts = [element.text or ""]
    for child in element:
        parts += [inline(child), child.tail or ""]
    text = "".join(parts)
    if element.tag == "br":
        return "\n"
    if element.tag == "code" and text.strip():
        return f"`{text}`" if "`" not in text else f"`` {text} ``"
    return text


def bare(element):
    """The text of one element as it stands, without what is skipped."""
    if skipped(element):
        return ""
    text = (element.text or "") + "".join(bare(c) + (c.tail or "") for c in element)
    return " " + text if "where" in classes(element) else text


def language(pre):
    names = classes(pre) | {c for code in pre.iter("code") for c in classes(code)}
    for name in sorted(names):
        if name.startswith("language-"):
            return name.removeprefix("language-")
    return "rust" if "rust" in names else ""


def code_lines(pre):
    lines = [line.rstrip() for line in bare(pre).replace("\u00a0", " ").strip("\n").split("\n")]
    return ["```" + language(pre), *lines, "```", ""] if any(lines) else []


def table_lines(table):
    rows = [" | ".join(squeeze(inline(cell)) for cell in row if cell.tag in ("td", "th")) for row in table.iter("tr")]
    return [row for row in rows if row.strip(" |")] + [""]


def block(element):
    """The lines of one block element; an empty line ends a paragraph."""
    if skipped(element):
        return []
    tag = element.tag
    if tag == "pre":
        return code_lines(element)
    if tag == "table":
        return table_lines(element)
    if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
        text = squeeze(bare(element))
        if "code-header" in classes(element):
            return [f"`{text}`", ""] if text else []
        return [f"{'#' * int(tag[1])} {squeeze(inline(element))}", ""] if text else []
    out, pending = [], [element.text or ""]

    def flush():
        text = squeeze("".join(pending))
        pending.clear()
        if text:
            out.extend([text, ""])

    for child in element:
        if child.tag in BLOCK and not skipped(child):
            flush()
            out.extend(block(child))
        else:
            pending.append(inline(child))
        pending.append(child.tail or "")
    flush()
    if tag in ("li", "dd") and out:
        while out and not out[-1]:
            out.pop()
        prefix = "- " if tag == "li" else ": "
        return [prefix + out[0]] + ["  " + line if line else "" for line in out[1:]]
    if tag in ("ul", "ol", "dl"):
        out.append("")
    if tag == "dt":
        while out and not out[-1]:
            out.pop()
    return out


def drop_copied_docs(main):
    """Trait implementations repeat the trait's own text under "Read more": keep only what they say themselves."""
    for part in main.xpath('.//div[@id="trait-implementations-list"]'):
        for doc in part.xpath('.//div[contains(@class,"docblock")][a[text()="Read more"]]'):
            method = doc.getparent()
            if method.getparent() is not None:
                method.getparent().remove(method)
        for group in list(part):
            if not group.xpath('.//div[contains(@class,"docblock")]'):
                part.remove(group)
        if not len(part):
            heading = part.getprevious()
            if heading is not None:
                heading.getparent().remove(heading)


def title(main):
    """Puts the module path of a rustdoc page into its heading: `# Struct std::vec::Vec`."""
    crumbs = main.xpath('.//div[contains(@class,"rustdoc-breadcrumbs")]')
    heads = main.xpath(".//h1")
    if crumbs and heads:
        for button in heads[0].xpath(".//button"):
            button.getparent().remove(button)
        path = re.sub(r"\s+", "", crumbs[0].text_content())
        words = squeeze(heads[0].text_content()).split(" ")
        new = lxml_html.Element("h1")
        new.text = " ".join([*words[:-1], f"{path}::{words[-1]}"])
        heads[0].getparent().replace(heads[0], new)


def page(job):
    """(path, lines, documented items) of one HTML file."""
    root, path = job
    tree = lxml_html.fromstring((root / path).read_bytes().decode("utf-8").encode("utf-8"), parser=lxml_html.HTMLParser(encoding="utf-8"))
    mains = tree.xpath("//main") or tree.xpath("//body")
    if not mains or "http-equiv=\"refresh\"" in lxml_html.tostring(tree, encoding="unicode")[:2000].lower():
        return path, [], []
    main = mains[0]
    items = questions.documented_items(path, main, inline)
    drop_copied_docs(main)
    title(main)
    return path, block(main), items


def key(line):
    text = re.sub(r"^[\s\-:#|>*]+", "", line).lower()
    text = re.sub(r"\b[iuf](8|16|32|64|128|size)\b", "int", text)
    return re.sub(r"\d+", "0", re.sub(r"\s+", " ", text)).strip()


def heading_level(line):
    """1 to 6 for what needs text below it: headings and the signatures of rustdoc pages; 0 for text."""
    match = re.match(r"(#{1,6}) ", line)
    if match:
        return len(match.group(1)) + 2 * (len(match.group(1)) > 2)
    if re.match(r"`(unsafe )?impl\b.*`$", line):
        return 3
    if re.match(r"`(pub |const |unsafe |async |fn |type |extern )[^`]*`$", line):
        return 4
    return 0


def tidy(lines):
    """Removes code blocks of which less than half is left, headings with nothing below, and runs of empty lines."""
    out, i = [], 0
    while i < len(lines):
        kept, line = lines[i]
        if line.startswith("```") and line.strip() != "```" or line == "```":
            end = next(j for j in range(i + 1, len(lines)) if lines[j][1].strip() == "```")
            body = lines[i + 1:end]
            good = [text for keep, text in body if keep]
            if any(t.strip() for t in good) and sum(bool(t.strip()) for t in good) * 2 > sum(bool(t.strip()) for _, t in body):
                out += [line, *good, lines[end][1]]
            i = end + 1
            continue
        if kept:
            out.append(line)
        i += 1
    result, below = [], 0   # from the end: the level of the next heading that stays, 9 once there is text
    for line in reversed(out):
        level = heading_level(line)
        if level and below <= level:
            continue
        if line.strip():
            below = level or 9
        result.append(line)
    text = "\n".join(reversed(result))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def sentences(line):
    """The sentences of a paragraph; a signature is one."""
    return [line] if heading_level(line) else re.split(r"(?<=[.!?]) (?=[A-Z`“])", line)


def deduplicate(pages):
    """Keeps the first occurrence of each line, and outside code of each sentence, of more than N_CHARS_UNIQUE characters."""
    seen, n_lines, n_dropped = set(), 0, 0
    out = []

    def new(text):
        name = hashlib.blake2b(key(text).encode(), digest_size=12).digest()
        known = name in seen
        seen.add(name)
        return not known

    for path, lines in pages:
        marked = []
        in_code = False
        for line in lines:
            in_code ^= line.strip().startswith("```")
            if len(line.strip()) <= N_CHARS_UNIQUE:
                marked.append((True, line))
                continue
            n_lines += 1
            kept = line if new(line) else ""
            if kept and not in_code:
                kept = " ".join(s for i, s in enumerate(sentences(line)) if len(s) <= N_CHARS_UNIQUE or (i == 0 and s == line) or new(s))
            n_dropped += not kept
            marked.append((bool(kept.strip()), kept))
        text = tidy(marked)
        if len(text) >= N_CHARS_PAGE_MIN:
            out.append({"path": path, "text": text})
    return out, n_lines, n_dropped


def is_heldout(path):
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") % HELDOUT_OF < HELDOUT_BELOW


def packed_size(data):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": max(1 << 26, 1 << len(data).bit_length())}]
    return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))


def lzma_bits_per_byte(train, heldout):
    with Pool(2) as pool:
        both, alone = pool.map(packed_size, [train + heldout, train])
    return (both - alone) * 8 / len(heldout)


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


FIRST = ["vec/struct.Vec", "string/struct.String", "option/enum.Option", "result/enum.Result", "iter/trait.Iterator", "collections/struct.HashMap",
         "collections/hash_map/struct.HashMap", "boxed/struct.Box", "rc/struct.Rc", "cell/struct.RefCell", "primitive.slice", "primitive.str",
         "primitive.i32", "primitive.f64", "primitive.char", "fs/struct.File", "sync/struct.Arc", "sync/struct.Mutex"]


def reading_order(path):
    """Well-known pages keep their lines whole; a module's index repeats the first lines of its items."""
    if path.startswith("std/"):
        name = path[4:-5]
        return (FIRST.index(name) if name in FIRST else len(FIRST), path.endswith("/index.html"), path)
    return (0, False, path)


def all_paths(root):
    paths = []
    for part in PARTS:
        found = [root / part] if part.endswith(".html") else (root / part).rglob("*.html")
        paths += sorted((p for p in (str(f.relative_to(root)) for f in found) if not LEFT_OUT.search(p)), key=reading_order)
    return paths


def copied(path, known):
    part, _, rest = path.partition("/")
    return part in ("core", "alloc") and f"std/{rest}" in known


def default_docs():
    root = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(root) / "share/doc/rust/html"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--docs", type=Path, default=None, help="share/doc/rust/html of a toolchain (default: that of rustc)")
    parser.add_argument("--no-lzma", action="store_true", help="skip the LZMA baseline, which takes a minute")
    args = parser.parse_args()
    root = args.docs or default_docs()
    args.data.mkdir(parents=True, exist_ok=True)
    paths = all_paths(root)
    with Pool(os.cpu_count()) as pool:
        read = pool.map(page, [(root, p) for p in paths], chunksize=16)
    known = set(paths)
    pages, n_lines, n_dropped = deduplicate((path, lines) for path, lines, _ in read if not NO_TEXT.search(path) and not copied(path, known))
    train = [p for p in pages if not is_heldout(p["path"])]
    heldout = [p for p in pages if is_heldout(p["path"])]
    heldout_text = "\n".join(p["text"] for p in heldout)
    n_heldout = len(heldout_text.encode())
    write_lines(args.data / "pages-train.jsonl", train)
    write_lines(args.data / "pages-heldout.jsonl", heldout)
    (HERE / "heldout.txt").write_text("".join(p["text"] + "<|endoftext|>" for p in heldout), encoding="utf-8")

    words = toolcalls.words_of(train)
    (args.data / "words.json").write_text(json.dumps(words), encoding="utf-8")
    toolcalls.use_words(words)
    items = [item for path, _, found in read if not is_heldout(path) for item in found]
    chats = questions.chats(items, train, heldout_text) + toolcalls.chats()
    chats = questions.shuffled(chats)
    write_lines(args.data / "chats-train.jsonl", chats)
    for name, rows in (("questions", questions.HELDOUT), ("toolcalls", toolcalls.heldout())):
        (args.data / f"{name}.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    sizes = {"pages": len(train), "pages_heldout": len(heldout), "chats": {}, "lines_over_20": n_lines, "lines_dropped": n_dropped,
             "bytes": {"pages": sum(len(p["text"].encode()) for p in train), "heldout": n_heldout,
                       "chats": sum(len(c["text"].encode()) for c in chats)}, "parts": {}}
    for chat in chats:
        sizes["chats"][chat["kind"]] = sizes["chats"].get(chat["kind"], 0) + 1
    for p in train:
        part = p["path"].split("/")[0]
        sizes["parts"][part] = sizes["parts"].get(part, 0) + len(p["text"].encode())
    if not args.no_lzma:
        text = "\n".join(p["text"] for p in train)
        talk = "".join(c["text"] for c in chats)
        sizes["lzma_bits_per_byte_with_chats"] = round(lzma_bits_per_byte((talk + text).encode(), heldout_text.encode()), 4)
        sizes["lzma_bits_per_byte_pages_only"] = round(lzma_bits_per_byte(text.encode(), heldout_text.encode()), 4)
        sizes["lzma_bits_per_byte"] = min(sizes["lzma_bits_per_byte_with_chats"], sizes["lzma_bits_per_byte_pages_only"])
    (args.data / "corpus.json").write_text(json.dumps(sizes, indent=1) + "\n")
    print(json.dumps(sizes, indent=1))
    talk = "".join(chat["text"] for chat in chats)
    seen = [q["question"] for q in questions.HELDOUT if q["question"] in talk]
    assert not seen, f"held-out questions in training: {seen}"
    assert n_heldout < N_BYTES_HELDOUT_MAX, f"held-out text has {n_heldout} bytes, at most {N_BYTES_HELDOUT_MAX}: lower HELDOUT_BELOW"


if __name__ == "__main__":
    main()
