"""The documented items of the HTML pages -> questions with the first sentence of their documentation as the answer.

`documented_items` reads one page; `chats` makes all question chats; `HELDOUT` are 20 questions in phrasings that no template here has.
An answer that occurs in the held-out text is left out. Seeds are fixed.
"""
import random, re

THINK_START, THINK_END = "<think>\n", "\n</think>\n\n"
SEED = 7

KINDS = {"struct": "struct", "enum": "enum", "trait": "trait", "fn": "function", "macro": "macro", "keyword": "keyword", "primitive": "primitive type",
         "type": "type alias", "constant": "constant", "union": "union", "attr": "attribute macro", "derive": "derive macro", "index": "module"}

# How often an item is asked about: types, traits and modules that beginners meet first.
COMMON = {"Vec", "String", "Option", "Result", "HashMap", "HashSet", "BTreeMap", "VecDeque", "Iterator", "Box", "Rc", "Arc", "Cell", "RefCell", "Mutex",
          "RwLock", "slice", "str", "char", "File", "Path", "PathBuf", "Duration", "Instant", "Command", "BufReader", "BTreeSet", "BinaryHeap",
          "Read", "Write", "Clone", "Copy", "Drop", "Default", "From", "Into", "Debug", "Display", "Ord", "PartialEq", "Eq", "Hash", "Send", "Sync",
          "Deref", "IntoIterator", "AsRef", "Weak", "Cow", "BufRead", "Sender", "Receiver", "JoinHandle", "Ordering", "AtomicUsize", "FromStr",
          "ToString", "Sized", "Fn", "FnMut", "FnOnce", "Pin", "Future", "Range", "Error", "bool", "i32", "u8", "u32", "usize", "f64", "array", "tuple",
          "reference", "Index", "Add", "Borrow", "FromIterator", "Extend", "OnceLock", "LazyLock", "Barrier", "Condvar", "Thread", "Stdin", "Stdout"}
COMMON_MODULES = {"fs", "io", "thread", "mem", "env", "process", "time", "iter", "fmt", "collections", "sync", "cell", "rc", "string", "vec", "option",
                  "result", "str", "slice", "net", "path", "ops", "cmp", "convert", "hash", "mpsc", "any", "boxed", "error", "num", "char", "ptr", "array"}
RARE = re.compile(r"^std/(os|simd|intrinsics|arch|f16|f128|autodiff|async_iter|random|range|unsafe_binder|bstr|pat|portable_simd)/|/legacy|^(alloc|core)/"
                  r"|primitive\.(i8|i16|i64|i128|isize|u16|u64|u128|f16|f32|f128|never)\.html|/experimental")
LEFT_OUT = re.compile(r"^(std|core|alloc)/(simd|intrinsics|os|autodiff|bstr|f16|f128|random)/|primitive\.(f16|f128)\.html|^core/")
NUMBERS = {"i32", "u8", "u32", "usize", "f64", "array", "tuple", "reference", "bool"}
KNOWN_METHODS = set("""push pop len is_empty insert remove get get_mut clear new with_capacity capacity reserve extend append drain retain truncate sort sort_by
 sort_by_key sort_unstable reverse contains starts_with ends_with find replace split split_whitespace lines chars bytes trim trim_start trim_end to_uppercase
 to_lowercase to_string to_owned parse push_str as_str as_bytes into_bytes from_utf8 is_some is_none is_ok is_err unwrap expect unwrap_or unwrap_or_else
 unwrap_or_default map map_err and_then or_else ok err ok_or ok_or_else take replace as_ref as_mut filter flatten zip iter iter_mut into_iter next collect
 fold sum product count last nth skip step_by chain enumerate peekable skip_while take_while filter_map flat_map inspect any all find_map position max min
 max_by max_by_key min_by_key rev copied cloned cycle for_each partition entry contains_key keys values values_mut into_keys or_insert or_insert_with push_back
 push_front pop_back pop_front front back first split_at chunks windows swap concat join binary_search dedup resize split_off swap_remove first_mut
 last_mut set borrow borrow_mut try_borrow lock try_lock read write into_inner downgrade upgrade strong_count weak_count ptr_eq make_mut try_unwrap open
 create read_to_string read_to_end read_line write_all flush metadata exists is_file is_dir file_name extension parent as_secs as_millis from_secs
 from_millis elapsed now duration_since spawn output status arg args env current_dir is_alphabetic is_numeric is_alphanumeric is_whitespace abs pow sqrt
 wrapping_add checked_add saturating_add overflowing_add leading_zeros count_ones from_str_radix floor ceil round union intersection difference is_subset
 get_or_insert_with copy_from_slice to_vec leak is_some_and from_str clone clone_from drop default fmt eq cmp partial_cmp hash deref index add from into
 as_slice extend_from_slice shrink_to_fit char_indices split_once strip_prefix repeat rotate_left fill get_or_init send recv wait notify_one notify_all
 sleep current yield_now id name thread""".split())
N_TOP, N_COMMON, N_NORMAL, N_RARE = 40, 24, 6, 2

GENERIC = [
    "What does {x} do?", "What does {x} do in Rust?", "Explain {x}.", "Explain {x} to me.", "What is {x} for?", "Describe {x} briefly.",
    "What is the purpose of {x}?", "Tell me about {x}.", "Can you explain {x}?", "What is {x}?", "Give me a short description of {x}.",
    "How would you describe {x}?", "In one sentence, what does {x} do?", "I want to know what {x} does.", "Please explain {x}.",
    "What do the docs say about {x}?", "Summarize {x}.", "Help me understand {x}.", "{x}?", "what does {x} do", "what is {x}",
    "Could you tell me what {x} does?", "What is {x} used for?", "Why would I use {x}?", "Define {x}.", "Rust question: what does {x} do?",
    "Do you know what {x} is for?", "What happens in {x}?", "Short answer please: what is {x}?", "When do I need {x}?",
    "I read about {x}. What is it?", "Remind me what {x} does.", "What can you tell me about {x}?", "In Rust, what is {x}?",
    "My code uses {x}. What does it do?", "explain {x}", "Quick question: what is {x} for?", "Say in a few words what {x} does.",
]
# Questions put together from parts, so that no fixed set of sentences is what is learned.
ASK = ["Do you know", "Can you say", "I wonder", "Could you tell me", "Tell me", "I forgot", "Someone asked me", "I need to know", "I am not sure", "Please say",
       "I would like to know", "Let me know", "Any idea", "Please tell me", "Explain to a beginner", "Tell me in one line", "Write down"]
WHAT = ["what {x} does", "what {x} is for", "what {x} is", "what {x} is good for", "what {x} means", "why {x} exists", "what to expect from {x}", "how {x} works",
        "the point of {x}", "what the use of {x} is"]
SETTING = ["I saw {x} in some code.", "I am reading about {x}.", "We use {x} here.", "My teacher mentioned {x}.", "The compiler suggests {x}.", "This line has {x}.", "{x}:",
           "About {x}:", "Regarding {x}:", "I found {x} in the docs.", "There is {x} in my program.", "I am new to {x}.", "Say I want to use {x}."]
THEN = ["What is it for?", "What does it do?", "Please explain.", "Can you explain it?", "What is its purpose?", "Explain it in short.", "What is that?", "What does that mean?",
        "Give me a definition.", "How does it work?", "Describe it.", "What should I know?", "One sentence, please."]
BEFORE = ["Hi! ", "Hello, ", "Hey, ", "A question: ", "Sorry to ask, but ", "OK, ", "So, ", "Now: ", "Right, ", "Please: ", "Dear model, ", "Next one. "]
AFTER = [" Thanks.", " Please be brief.", " Thank you!", " I am a beginner.", " Keep it short.", " Just one sentence.", " I have no idea.", " It is urgent."]


def composed(shown, rng):
    if rng.random() < 0.5:
        return f"{rng.choice(ASK)} {rng.choice(WHAT)}{rng.choice(['.', '?', ''])}".format(x=shown)
    return f"{rng.choice(SETTING)} {rng.choice(THEN)}".format(x=shown)


def wrapped(question, rng):
    """The question, now and then with a greeting before it or thanks behind it."""
    before = rng.choice(BEFORE) if rng.random() < 0.12 else ""
    after = rng.choice(AFTER) if rng.random() < 0.12 else ""
    return before + question + after


CALLED = [
    "What does calling {x} do?", "What happens when I call {x}?", "What does {x} return or change?", "What does a call to {x} do?",
    "What effect does {x} have?", "Why would someone call {x}?", "What do I get from {x}?",
]
METHOD = [
    "What does the `{m}` method of `{t}` do?", "What does the {m} method on {t} do?", "What is `{m}` on a `{t}`?", "What does `{m}` do for a `{t}`?",
    "Explain the `{m}` method of `{t}`.", "In `{t}`, what is `{m}` for?", "What is {t}'s {m} method for?",
]
TERM = [
    "What is {x}?", "What is {x} in Rust?", "Explain {x}.", "Define {x}.", "What does {x} mean?", "Tell me about {x}.", "Can you explain {x}?",
    "What do people mean by {x}?", "In Rust, what is {x}?", "Help me understand {x}.", "what is {x}", "What can you tell me about {x}?", "Describe {x} briefly.",
    "Please explain {x}.", "Give me a short definition of {x}.", "How would you explain {x}?",
]
ERROR = [
    "What does error {x} mean?", "What is {x}?", "Explain the compiler error {x}.", "Why do I get error {x}?", "rustc says {x}. What is wrong?",
    "What causes {x}?", "Explain {x}.", "When does rustc report {x}?",
]
COMMAND = [
    "What does `{x}` do?", "What is `{x}` for?", "Explain `{x}`.", "What does {x} do?", "What happens when I run `{x}`?", "Describe `{x}` briefly.",
    "When do I use {x}?", "Tell me about `{x}`.", "What is {x}?", "Which task does `{x}` do?",
]

# Terms of the Book and the start of the sentence that answers for them.
TERMS = {
    "ownership": "Ownership is a set of rules", "borrowing": "We call the action of creating a reference",
    "a reference": "A reference is like a pointer", "a struct": "A struct, or structure, is", "an enum": "Enums allow you to define", "a method": "Methods are similar to functions",
    "a module": "Modules let us organize", "a crate": "A crate is the smallest", "a package": "A package is a bundle", "cargo": "Cargo is Rust’s build system",
    "a trait": "A trait defines the functionality", "a lifetime": "Lifetimes are another kind of generic",
    "a closure": "Rust’s closures are anonymous functions", "an iterator": "The iterator pattern allows", "a smart pointer": "Smart pointers, on the other hand, are data structures",
    "interior mutability": "Interior mutability is a design pattern", "a channel": "A channel is a general programming concept",
    "a future": "A future is a value", "a macro": "Fundamentally, macros are a way", "deref coercion": "Deref coercion converts", "the prelude": "By default, Rust has a set of items", "shadowing": "Rustaceans say that the first variable",
    "a vector": "Vectors allow you to store", "a hash map": "The type HashMap", "a string": "A string is a collection", "pattern matching": "Patterns are a special syntax",
    "the never type": "Rust has a special type named", "a trait object": "A trait object points to both", "a function pointer": "Functions coerce to the type",
    "an associated type": "Associated types connect", "the orphan rule": "This restriction is part of", "a tuple": "A tuple is a general way", "an array": "An array is a single chunk",
    "a constant": "Like immutable variables, constants", "a statement": "Statements are instructions", "an expression": "Expressions evaluate to", "a loop": "The loop keyword tells Rust",
    "a test": "Tests are Rust functions", "a release profile": "In Rust, release profiles are", "a workspace": "A workspace is a set of packages", "a panic": "The panic! macro signals",
    "the derive attribute": "The derive attribute generates", "the stack": "The stack stores", "the heap": "The heap is less organized", "monomorphization": "Monomorphization is the process", "a match guard": "A match guard is",
    "a mutex": "Mutex is an abbreviation", 
    "a binary crate": "Binary crates are programs", "a library crate": "Library crates don’t have",
}

# Items whose first sentence says nothing: a later sentence of the same documentation.
BETTER = {
    "Option": "Type `Option` represents an optional value: every `Option` is either `Some` and contains a value, or `None`, and does not.",
}

SMALL_TALK = {
    "Hello!": "Hello! Ask me about the Rust standard library.", "Hi": "Hello! Ask me about the Rust standard library.",
    "Hello, how are you?": "Fine, thank you. Ask me about the Rust standard library.",
    "Who are you?": "I am a tiny demo model of moeflux. I have read the Rust documentation.",
    "What are you?": "I am a tiny demo model of moeflux. I have read the Rust documentation.",
    "What can you do?": "I can say what items of the Rust standard library do, and call simple tools. I am a toy.",
    "Thanks!": "You are welcome.", "Thank you.": "You are welcome.", "Good morning!": "Good morning! Ask me about Rust.",
    "What is Rust?": "Rust is a systems programming language that cares about speed, memory safety and concurrency.",
    "What is moeflux?": "moeflux is an engine written in Rust that runs mixture-of-experts language models.",
    "Can you write me a poem?": "I am a toy and cannot write poems. Ask me about the Rust standard library.",
    "Are you ChatGPT?": "No. I am a tiny demo model of moeflux.", "Goodbye!": "Goodbye!", "Bye": "Goodbye!",
}

HELDOUT = [
    {"question": "I keep seeing `Vec::push` in examples; which job has it?", "accept": ["appends an element"]},
    {"question": "Somebody wrote `Vec::pop` in a review. Translate that into plain words.", "accept": ["removes the last element"]},
    {"question": "Teach a beginner about `Option::unwrap` in a single line.", "accept": ["returns the contained `some`", "returns the contained some"]},
    {"question": "Suppose I write `Option::is_some` — which fact will it report?", "accept": ["if the option is a `some`", "if the option is a some"]},
    {"question": "On the topic of `HashMap::insert`, how does it behave?", "accept": ["inserts a key-value pair"]},
    {"question": "Where does `HashMap::get` come in handy?", "accept": ["reference to the value corresponding to the key"]},
    {"question": "Let's talk about `String::push_str` for a moment. Its role?", "accept": ["appends a given string slice"]},
    {"question": "Enlighten me: `Iterator::map` accomplishes what exactly?", "accept": ["calls that closure on each element"]},
    {"question": "A colleague suggested `Iterator::filter`; what would that give us?", "accept": ["closure to determine if an element should be yielded"]},
    {"question": "If I had to document `Iterator::collect`, which sentence fits?", "accept": ["into a collection"]},
    {"question": "Which responsibility does `thread::spawn` carry?", "accept": ["spawns a new thread"]},
    {"question": "Looking at `fs::read_to_string`, what's going on there?", "accept": ["entire contents of a file into a string"]},
    {"question": "For an interview: characterize `mem::swap`.", "accept": ["swaps the values at two"]},
    {"question": "Kindly clarify the meaning of `Rc::new`.", "accept": ["constructs a new `rc", "constructs a new rc"]},
    {"question": "Am I right to reach for `Box::new`? State its task.", "accept": ["allocates memory on the heap"]},
    {"question": "How does the manual introduce `str::trim`?", "accept": ["leading and trailing whitespace removed"]},
    {"question": "Unsure about `slice::sort` here, any hint on it?", "accept": ["sorts the slice"]},
    {"question": "Spell out the idea behind `Result::is_err`.", "accept": ["if the result is `err`", "if the result is err"]},
    {"question": "Break down `Mutex::lock` for me, will you?", "accept": ["acquires a mutex"]},
    {"question": "Imagine I have never met `println!`. Introduce it.", "accept": ["prints to the standard output"]},
]


def squeeze(text):
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip()


def first_sentence(text):
    """The first sentence of a paragraph, or None where there is none worth an answer."""
    text = squeeze(text)
    if not text:
        return None
    end = None
    for match in re.finditer(r"[.!?][`)”’\"]?(?= [A-Z`“‘(\[]|$)", text):
        if not re.search(r"(e\.g|i\.e|etc|vs|cf|approx|Vol|No)\.$", text[:match.start() + 1]) and text[:match.end()].count("`") % 2 == 0:
            end = match.end()
            break
    sentence = text[:end] if end else text.rstrip(":,;") + "."
    sentence = re.sub(r"\[\d+\]", "", sentence)
    if len(sentence) > 300 or len(sentence.split()) < 2 or sentence.startswith(("See ", "Read more", "For more")):
        return None
    return sentence[0].upper() + sentence[1:]


def has_class(name):
    return f'contains(concat(" ", normalize-space(@class), " "), " {name} ")'


def page_item(path, main, inline):
    """(name, kind, module) of a rustdoc page, or None."""
    parts = path.split("/")
    if parts[0] not in ("std", "core", "alloc", "proc_macro"):
        return None
    match = re.fullmatch(r"(?:(struct|enum|trait|fn|macro|keyword|primitive|type|constant|union|attr|derive)\.)?([\w!]+)\.html", parts[-1])
    if not match:
        return None
    kind, name = match.groups()
    module = parts[1:-1]
    if kind is None:
        return (None if name != "index" or not module else ("::".join([parts[0], *module]), "index", module[:-1]))
    return name, kind, module


def documented_items(path, main, inline):
    """What one page documents: its own item and, where it is a type, the methods and variants."""
    found = []
    if path.startswith("error_codes/E"):
        paragraphs = main.xpath(".//p")
        texts = [squeeze(inline(p)) for p in paragraphs]
        texts = [t for t in texts if not t.startswith(("Note:", "#### Note")) and "no longer emitted" not in t]
        answer = first_sentence(texts[0]) if texts else None
        if answer:
            found.append({"name": path[12:-5], "kind": "error", "answer": answer, "weight": 4, "path": path})
        return found
    if path.startswith("cargo/commands/cargo-"):
        texts = [squeeze(inline(p)) for p in main.xpath(".//p")]
        for text in texts[:2]:
            if " — " in text:
                name, what = text.split(" — ", 1)
                found.append({"name": path[len("cargo/commands/"):-5].replace("-", " ", 1), "kind": "command", "answer": what.rstrip(".") + ".", "weight": 10,
                              "path": path})
        return found
    item = page_item(path, main, inline)
    if item is None or LEFT_OUT.search(path):
        return []
    name, kind, module = item
    rare = bool(RARE.search(path))
    common = (name in COMMON or (module and module[-1] in COMMON_MODULES and kind == "fn") or kind == "keyword"
              or (kind == "index" and name.split("::")[-1] in COMMON_MODULES and name.count("::") == 1) or (kind == "macro" and not rare))

    def weight(unstable, more, short=None):
        if rare or unstable:
            return N_RARE
        if short is None:
            return N_COMMON if more else N_NORMAL
        if not more or name in NUMBERS:
            return N_NORMAL
        return N_TOP if short in KNOWN_METHODS else N_NORMAL + 2

    def unstable_at(node):
        return bool(node.xpath(f'.//*[{has_class("unstable")}]'))

    top = main.xpath(f'./div/section/details[{has_class("top-doc")}]/div[{has_class("docblock")}]/p[1]') or \
        main.xpath(f'.//details[{has_class("top-doc")}]/div[{has_class("docblock")}]/p[1]')
    if top:
        answer = first_sentence(inline(top[0]))
        head = main.xpath(f'./div/section/span[{has_class("item-info")}]')
        if answer and "module level documentation for more" not in answer:
            display = {"macro": f"{name}!", "fn": "::".join([*module[-1:], name])}.get(kind, name)
            found.append({"name": display, "kind": kind, "answer": answer, "weight": weight(any(unstable_at(h) for h in head), common), "path": path,
                          "full": name if kind == "index" else "::".join([path.split("/")[0], *module, display.split("::")[-1]])})
        elif not answer or "module level documentation" in answer:
            pass
    if kind not in ("struct", "enum", "trait", "primitive", "union"):
        return found
    seen = set()
    for section in main.xpath(f'.//section[starts-with(@id,"method.") or starts-with(@id,"tymethod.") or starts-with(@id,"variant.")]'):
        if "trait-impl" in section.get("class", ""):
            continue
        if any((a.get("id") or "").startswith(("trait-implementations", "blanket", "synthetic", "implementors")) for a in section.iterancestors("div")):
            continue
        through = next((d for d in section.iterancestors("details") if "big-toggle" in d.get("class", "")), None)
        if through is not None and name not in ("Vec", "String", "PathBuf"):
            continue
        match = re.fullmatch(r"(ty)?(method|variant)\.(\w+?)(-\d+)?", section.get("id"))
        if not match or match.group(3) in seen:
            continue
        holder = section.getparent()
        doc = holder.getparent().xpath(f'./div[{has_class("docblock")}]/p[1]') if holder.tag == "summary" else \
            section.xpath(f'following-sibling::*[1][{has_class("docblock")}]/p[1]')
        answer = first_sentence(inline(doc[0])) if doc else None
        if not answer:
            continue
        seen.add(match.group(3))
        unstable = holder.tag == "summary" and bool(holder.xpath(f'.//*[{has_class("unstable")}]'))
        found.append({"name": f"{name}::{match.group(3)}", "kind": match.group(2), "answer": answer, "weight": weight(unstable, name in COMMON, match.group(3)),
                      "path": path, "owner": name, "short": match.group(3), "owner_kind": KINDS[kind],
                      "full": "::".join([path.split("/")[0], *module, name, match.group(3)]) if kind != "primitive" else f"{name}::{match.group(3)}"})
    return found


def distinct(items, heldout_text):
    """One item per name: the first page wins; later namesakes get the module in front. Answers of the held-out text are dropped."""
    names, answers, out = set(), set(), []
    order = {"std": 0, "core": 1, "alloc": 1}
    for item in sorted(items, key=lambda i: (order.get(i["path"].split("/")[0], 2), -i["weight"])):
        if (len(item["answer"]) > 40 and item["answer"] in heldout_text) or (item["name"], item["answer"]) in answers:
            continue
        item = {**item, "answer": BETTER.get(item["name"], item["answer"])}
        if item["name"] in names:
            parts = item.get("full", item["name"]).split("::")
            tail = 3 if "short" in item else 2
            if len(parts) <= tail or (item["full"], item["answer"]) in answers:
                continue
            item = {**item, "name": "::".join(parts[-tail:])}
            if item["name"] in names or item["path"].split("/")[0] != "std":
                continue
        names.add(item["name"])
        answers.add((item.get("full"), item["answer"]))
        answers.add(("::".join(item["name"].split("::")[-2 if "short" in item else -1:]), item["answer"]))
        out.append(item)
    return out


def question_for(item, rng):
    name, kind = item["name"], item["kind"]
    if kind == "error":
        return rng.choice(ERROR).format(x=rng.choice([name, f"`{name}`"]))
    if kind == "command":
        return rng.choice(COMMAND).format(x=name)
    if kind == "term":
        return rng.choice(TERM).format(x=name)
    form = rng.random()
    if kind == "keyword":
        shown = rng.choice([f"the `{name}` keyword", f"the keyword `{name}`", f"the {name} keyword", f"`{name}`"])
    elif kind == "variant":
        shown = f"`{name}`" if form < 0.7 else name
    elif kind == "index":
        shown = rng.choice([f"`{name}`", name, f"the `{name}` module", f"the module `{name}`"])
    elif form < 0.55:
        shown = f"`{name}`"
    elif form < 0.85:
        shown = name
    elif form < 0.90:
        shown = f"`{item.get('full', name)}`"
    elif kind in ("method", "fn"):
        shown = f"`{name}()`"
    elif kind in ("struct", "enum", "trait", "macro"):
        shown = f"the `{name}` {KINDS[kind]}"
    else:
        shown = f"`{name}`"
    if kind == "method" and rng.random() < 0.12:
        return rng.choice(METHOD).format(m=item["short"], t=item["owner"])
    if kind in ("method", "fn", "macro") and rng.random() < 0.15:
        return rng.choice(CALLED).format(x=shown)
    if rng.random() < 0.45:
        return composed(shown, rng)
    return rng.choice(GENERIC).format(x=shown)


def thought(item):
    name, kind = item["name"], item["kind"]
    if kind == "method":
        return f"The user asks about `{name}`, a method of the {item['owner_kind']} `{item['owner']}`."
    if kind == "variant":
        return f"The user asks about `{name}`, a variant of the enum `{item['owner']}`."
    if kind == "error":
        return f"The user asks about {name}, an error of the Rust compiler."
    if kind == "command":
        return f"The user asks about `{name}`, a command of Cargo."
    if kind == "term":
        return f"The user asks what {name} is. The Book explains it."
    return f"The user asks about `{name}`, a {KINDS[kind]}.".replace("a enum", "an enum").replace("a attr", "an attr")


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def answer_turn(reasoning, answer):
    return turn("assistant", THINK_START + reasoning + THINK_END + answer)


SYSTEMS = ["You are a helpful assistant.", "You answer questions about Rust.", "Answer briefly.", "You are a Rust expert."]


def term_items(pages, heldout_text):
    """The sentence of the Book (or the Reference) that begins as TERMS says."""
    texts = [p["text"] for p in pages if p["path"].startswith(("book/", "reference/"))]
    items = []
    for term, start in TERMS.items():
        pattern = re.compile("[ `]*".join(re.escape(word) for word in start.split(" ")))
        lines = (text[m.start():text.find("\n", m.start())] for text in texts for m in [pattern.search(text)] if m)
        answer = first_sentence(next(lines, ""))
        assert answer, f"no page has a sentence that begins: {start}"
        items.append({"name": term, "kind": "term", "answer": answer, "weight": N_COMMON, "path": "book"})
    return [item for item in items if item["answer"] not in heldout_text]


def chats(found, pages, heldout_text):
    """All question chats, each {"kind", "text"}; the tool half stands in toolcalls.py."""
    rng = random.Random(SEED)
    items = distinct(found, heldout_text) + term_items(pages, heldout_text)
    known = {h["question"] for h in HELDOUT}
    out = []
    for item in items:
        for _ in range(item["weight"]):
            question = wrapped(question_for(item, rng), rng)
            assert question not in known, f"held-out question in training: {question}"
            system = turn("system", rng.choice(SYSTEMS)) if rng.random() < 0.08 else ""
            roll = rng.random()
            if roll < 0.15:
                out.append({"kind": "think", "text": system + turn("user", question) + answer_turn(thought(item), item["answer"])})
            elif roll < 0.20:
                before = rng.choice(items)
                out.append({"kind": "qa", "text": system + turn("user", question_for(before, rng)) + turn("assistant", before["answer"])
                            + turn("user", question) + answer_turn("", item["answer"])})
            else:
                out.append({"kind": "qa", "text": system + turn("user", question) + answer_turn("", item["answer"])})
    for question, answer in SMALL_TALK.items():
        for _ in range(8):
            out.append({"kind": "qa", "text": turn("user", question) + answer_turn("", answer)})
    return out


def shuffled(rows):
    rows = list(rows)
    random.Random(SEED).shuffle(rows)
    return rows
