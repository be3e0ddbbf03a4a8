"""Random tool dialogues: some functions listed in the system message, a request, the call, the result, the reply.

`chats` makes the training dialogues, `heldout` the 20 requests that no training dialogue has: other values, other phrasings.
Values are drawn from wide sets, so that copying them is what is learned. Seeds are fixed.
"""
import json, random, re
from questions import SYSTEMS, answer_turn, turn, wrapped

SEED = 11
N_DIALOGUES = 22_000
PART_ANSWERED = 0.45      # the rest ends with the call
PART_UNMATCHED = 0.10     # no listed function can do what is asked
PART_REASONED = 0.10


def schema(name, description, required, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


def text(**more):
    return {"type": "string", **more}


NUMBER, INTEGER = {"type": "number"}, {"type": "integer"}
TOOLS = {tool["function"]["name"]: tool for tool in [
    schema("get_weather", "Get the weather of a city.", ["city"], city=text(), unit=text(enum=["celsius", "fahrenheit"])),
    schema("add", "Add two numbers.", ["a", "b"], a=NUMBER, b=NUMBER),
    schema("multiply", "Multiply two numbers.", ["a", "b"], a=NUMBER, b=NUMBER),
    schema("convert_units", "Convert a value from one unit to another.", ["value", "from", "to"], **{"value": NUMBER, "from": text(), "to": text()}),
    schema("search_docs", "Search the documentation.", ["query"], query=text(), limit=INTEGER),
    schema("read_file", "Read a file.", ["path"], path=text()),
    schema("set_timer", "Start a timer.", ["minutes"], minutes=INTEGER),
    schema("translate", "Translate a text.", ["text", "language"], text=text(), language=text()),
    schema("get_time", "Get the time in a city.", ["city"], city=text()),
    schema("send_message", "Send a message to a person.", ["to", "text"], to=text(), text=text()),
]}

CITIES = """London Madrid Rome Vienna Prague Dublin Oslo Stockholm Helsinki Athens Budapest Warsaw Brussels Amsterdam Copenhagen Zurich Geneva Munich Hamburg
Cologne Frankfurt Stuttgart Leipzig Dresden Bremen Milan Naples Turin Venice Florence Barcelona Seville Valencia Porto Lyon Marseille Nice Bordeaux Toulouse
Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Shenzhen Taipei Manila Bangkok Hanoi Jakarta Delhi Mumbai Chennai Kolkata Karachi Tehran Baghdad Cairo Tunis
Algiers Casablanca Lagos Accra Nairobi Kampala Harare Durban Sydney Melbourne Perth Brisbane Auckland Wellington Toronto Montreal Vancouver Calgary Ottawa
Boston Chicago Seattle Denver Dallas Houston Austin Miami Atlanta Phoenix Portland Detroit Lima Bogota Quito Santiago Caracas Havana Kingston Panama Sofia
Bucharest Belgrade Zagreb Sarajevo Skopje Tirana Riga Vilnius Tallinn Minsk Kyiv Odessa Tbilisi Baku Almaty Ankara Izmir Antalya Beirut Amman Doha Dubai
Muscat Riyadh Basel Bern Graz Linz Salzburg Innsbruck Ghent Bruges Antwerp Leeds Glasgow Bristol Oxford Cambridge York Bath Cork Galway Malmo Uppsala
Bergen Tampere Turku Aarhus Krakow Gdansk Poznan Brno Bratislava""".split()
CITIES += ["New York", "Los Angeles", "San Francisco", "San Diego", "Las Vegas", "Hong Kong", "Mexico City", "Cape Town", "Tel Aviv", "Abu Dhabi", "Rio de Janeiro",
           "Buenos Aires", "Sao Paulo", "Kuala Lumpur", "Ho Chi Minh City", "New Orleans", "Salt Lake City", "The Hague", "Saint Petersburg", "Addis Ababa"]
PEOPLE = """Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Karin Leo Maria Noah Olga Paul Rosa Simon Tina Viktor Wendy Xavier Yusuf Zoe Alice Bob Carol Dan
Eve Frank Gina Hans Irene Jack Kate Liam Mona Nils Otto Petra Quinn Ralf Sara Tom Ursula Vera Walter""".split()
LANGUAGES = "French German Spanish Italian Portuguese Dutch Swedish Danish Polish Czech Turkish Greek Japanese Korean Hindi Finnish Latin Arabic".split()
UNITS = {  # unit: (kind, factor to the first unit of its kind)
    "meters": ("length", 1.0), "kilometers": ("length", 1000.0), "miles": ("length", 1609.344), "feet": ("length", 0.3048), "inches": ("length", 0.0254),
    "centimeters": ("length", 0.01), "yards": ("length", 0.9144), "grams": ("mass", 1.0), "kilograms": ("mass", 1000.0), "pounds": ("mass", 453.59237),
    "ounces": ("mass", 28.349523), "tons": ("mass", 1_000_000.0), "liters": ("volume", 1.0), "gallons": ("volume", 3.785412), "milliliters": ("volume", 0.001),
    "cups": ("volume", 0.24), "seconds": ("time", 1.0), "minutes": ("time", 60.0), "hours": ("time", 3600.0), "days": ("time", 86400.0), "weeks": ("time", 604800.0),
    "bytes": ("data", 1.0), "kilobytes": ("data", 1e3), "megabytes": ("data", 1e6), "gigabytes": ("data", 1e9)}
TOPICS = """vector string hash map iterator closure trait lifetime borrow checker slice thread channel mutex atomic ordering macro pattern match enum struct generic
module crate cargo feature flag test benchmark unsafe pointer reference box arc cell async future pin stream file path socket process environment
time duration formatting parsing error handling panic result option conversion operator overloading integer overflow float rounding sorting searching
allocation memory layout drop order type inference const evaluation visibility documentation""".split()
NOUNS = """house garden river train window table coffee bread friend teacher book letter street bridge market doctor flower mountain beach kitchen ticket hotel
airport museum library concert dinner breakfast weather summer winter song picture phone computer key door horse bird tree""".split()
ADJECTIVES = "old new small big red green quiet cheap good long cold warm early late beautiful open happy blue strong empty".split()
OPENERS = """where is the|I like the|we need a|this is my|can I see the|the train leaves from the|I lost my|thank you for the|there is no|do you have a|
she bought a|look at the|he sold the|I am waiting at the|we met near the""".replace("\n", "").split("|")
FOLDERS = "src docs tests examples data config scripts build assets notes home logs backup lib tools target images reports crates benches".split()
STEMS = """main lib readme config notes index report data server client parser lexer router model utils helpers settings todo changelog errors types schema build
invoice summary draft plan budget results cache queue worker loader writer reader session token format""".split()
ENDINGS = "rs toml md txt json yaml csv log py html lock sh cfg xml".split()
SOUNDS = "ba be bo ka ke ko la le lo ma me mi mo na ne no ra re ri ro sa se so ta te to va ve vi za zo dor lin mar ton ver wick ham burg stad sel nor kor".split()
CONDITIONS = "sunny cloudy rainy windy snowy foggy clear stormy".split()


def city(rng):
    if rng.random() < 0.6:
        return rng.choice(CITIES)
    return invented(rng)


def invented(rng):
    return "".join(rng.choice(SOUNDS) for _ in range(rng.randint(2, 4))).capitalize()


def number(rng):
    roll = rng.random()
    if roll < 0.75:
        return rng.randint(1, 10 ** rng.randint(1, 4))
    if roll < 0.92:
        return round(rng.uniform(0, 100), rng.randint(1, 2)) or 1.5
    return -rng.randint(1, 500)


def file_path(rng):
    stem = rng.choice(STEMS) if rng.random() < 0.7 else invented(rng).lower()
    if rng.random() < 0.25:
        stem += rng.choice(["_", "-"]) + rng.choice([*STEMS, *(str(n) for n in range(1, 100))])
    parts = [rng.choice(FOLDERS) if rng.random() < 0.8 else invented(rng).lower() for _ in range(rng.randint(0, 3))]
    return rng.choice(["", "", "", "/", "./"]) + "/".join([*parts, f"{stem}.{rng.choice(ENDINGS)}"])


def phrase(rng):
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(NOUNS)
    if roll < 0.55:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    return f"{rng.choice(OPENERS).strip()} {rng.choice([rng.choice(ADJECTIVES) + ' ', ''])}{rng.choice(NOUNS)}"


def topic(rng):
    return " ".join(rng.sample(TOPICS, rng.randint(1, 3)))


def plain(value):
    """A number as the replies write it."""
    return str(int(value)) if float(value).is_integer() else f"{round(value, 4):g}" if abs(value) < 1e5 else str(round(value, 2))


def get_weather(rng):
    where, unit = city(rng), rng.choice([None, None, "celsius", "fahrenheit"])
    asks = ["What is the weather in {c}?", "How is the weather in {c}?", "What's the weather like in {c}?", "Is it cold in {c}?", "Weather in {c}, please.", "Tell me the weather in {c}.",
            "How warm is it in {c}?", "Do I need a coat in {c}?", "weather {c}", "Is it raining in {c} now?", "Give me the weather for {c}.", "Please check the weather in {c}.",
            "I am going to {c}. How is the weather there?", "Current weather of {c}?", "Will I need an umbrella in {c}?", "I want to know the weather in {c}.",
            "Could you look up the weather in {c}?", "Show the weather for {c}."]
    if unit:
        asks = ["What is the weather in {c} in {u}?", "How warm is it in {c}, in {u}?", "Tell me the temperature in {c} in degrees {u}.", "Weather in {c}, {u} please.",
                "Get the weather for {c} in {u}.", "I need the temperature of {c} in {u}.", "Give me the weather in {c} using {u}.", "weather {c} {u}",
                "Please show the weather of {c} in {u}.", "How cold is {c} in {u}?", "What's the {u} temperature in {c}?", "In {u}, how warm is {c}?"]
    degrees, sky = rng.randint(-15, 40), rng.choice(CONDITIONS)
    shown = unit or "celsius"
    if shown == "fahrenheit":
        degrees = degrees * 9 // 5 + 32
    return (rng.choice(asks).format(c=where, u=unit), {"city": where, **({"unit": unit} if unit else {})},
            {"temperature": degrees, "unit": shown, "condition": sky}, f"It is {degrees} degrees {shown} and {sky} in {where}.", f"the weather in {where}")


def add(rng):
    a, b = number(rng), number(rng)
    total = round(a + b, 4)
    ask = rng.choice(["What is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?", "{a} + {b}", "Please add {a} to {b}.", "Compute {a} + {b}.", "Sum of {a} and {b}?",
                      "How much is {a} plus {b}?", "Calculate {a} plus {b}.", "Can you add {a} and {b}?", "I have {a} and get {b} more. How many are that?",
                      "What do {a} and {b} make together?", "What is the sum of {a} and {b}?", "Add up {a} and {b} for me."])
    args = {"a": b, "b": a} if "to {b}" in ask else {"a": a, "b": b}
    return ask.format(a=a, b=b), args, {"result": total}, f"{args['a']} plus {args['b']} is {total}.", f"the sum of {args['a']} and {args['b']}"


def multiply(rng):
    a, b = number(rng), number(rng)
    result = round(a * b, 4)
    ask = rng.choice(["What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?", "{a} x {b}", "Compute {a} * {b}.", "How much is {a} times {b}?", "Calculate {a} times {b}.",
                      "Please multiply {a} and {b}.", "What is the product of {a} and {b}?", "Can you multiply {a} by {b}?", "Product of {a} and {b}?"])
    return ask.format(a=a, b=b), {"a": a, "b": b}, {"result": result}, f"{a} times {b} is {result}.", f"the product of {a} and {b}"


def convert_units(rng):
    start = rng.choice(list(UNITS))
    end = rng.choice([u for u in UNITS if UNITS[u][0] == UNITS[start][0] and u != start])
    value = abs(number(rng))
    result = float(f"{value * UNITS[start][1] / UNITS[end][1]:.5g}")
    result = int(result) if result.is_integer() else result
    ask = rng.choice(["Convert {v} {s} to {e}.", "How many {e} are {v} {s}?", "What is {v} {s} in {e}?", "{v} {s} in {e}", "Please convert {v} {s} into {e}.", "How much is {v} {s} in {e}?",
                      "Change {v} {s} to {e}.", "I have {v} {s}. How many {e} is that?", "Give me {v} {s} in {e}.", "convert {v} {s} to {e}", "Turn {v} {s} into {e}.",
                      "Can you convert {v} {s} to {e}?", "Express {v} {s} in {e}."])
    return (ask.format(v=value, s=start, e=end), {"value": value, "from": start, "to": end}, {"result": result}, f"{value} {start} are {result} {end}.",
            f"{value} {start} in {end}")


def search_docs(rng):
    query, limit = topic(rng), rng.choice([None, None, rng.randint(1, 50)])
    asks = ["Search the docs for {q}.", "Look up {q} in the documentation.", "Find pages about {q}.", "Search for {q}.", "search docs {q}", "What do the docs have on {q}?",
            "Please search the documentation for {q}.", "Can you find {q} in the docs?", "I need documentation about {q}.", "Find {q} in the docs.", "Search the documentation: {q}"]
    if limit:
        asks = ["Search the docs for {q}, at most {n} results.", "Find {n} pages about {q}.", "Give me {n} results for {q}.", "Search for {q} and show {n} results.",
                "Look up {q} in the documentation, limit {n}.", "search docs {q} limit {n}", "Show the first {n} hits for {q} in the docs.", "I want {n} results about {q}.",
                "Please search the documentation for {q} with a limit of {n}.", "Find me the top {n} entries on {q}.", "Search the documentation for {q}. Return {n} results."]
    hits = [f"{rng.choice(FOLDERS)}/{rng.choice(TOPICS)}.html" for _ in range(rng.randint(1, 3))]
    return (rng.choice(asks).format(q=query, n=limit), {"query": query, **({"limit": limit} if limit else {})}, {"results": hits},
            f"The documentation has this about {query}: {', '.join(hits)}.", f"documentation about {query}")


def read_file(rng):
    path, content = file_path(rng), phrase(rng)
    ask = rng.choice(["Read {p}.", "Read the file {p}.", "Show me {p}.", "What is in {p}?", "Open {p}.", "Please read `{p}`.", "What does {p} say?", "Show the contents of {p}.", "cat {p}",
                      "Can you open {p} for me?", "Print the file {p}.", "I want to see {p}.", "Give me the content of `{p}`.", "What is written in {p}?", "Look into {p}."])
    return ask.format(p=path), {"path": path}, {"content": content}, f"The file {path} contains: {content}", f"the file {path}"


def set_timer(rng):
    minutes = rng.randint(1, 180)
    ask = rng.choice(["Set a timer for {n} minutes.", "Start a timer of {n} minutes.", "Timer {n} minutes.", "Wake me in {n} minutes.", "Please set a {n} minute timer.",
                      "Remind me in {n} minutes.", "I need a timer for {n} minutes.", "timer {n}", "Start a {n} minute timer.", "Can you set a timer for {n} minutes?",
                      "Count down {n} minutes.", "Let me know when {n} minutes are over.", "Set the timer to {n} minutes."])
    return ask.format(n=minutes), {"minutes": minutes}, {"status": "started"}, f"The timer is set for {minutes} minutes.", f"a timer of {minutes} minutes"


def translate(rng):
    words, language = phrase(rng), rng.choice(LANGUAGES)
    ask = rng.choice(["Translate \"{t}\" into {l}.", "Translate {t} to {l}.", "How do you say \"{t}\" in {l}?", "What is \"{t}\" in {l}?", "Say {t} in {l}.", "Please translate \"{t}\" to {l}.",
                      "translate \"{t}\" {l}", "I need \"{t}\" in {l}.", "Can you translate '{t}' into {l}?", "What does \"{t}\" mean in {l}?", "Give me the {l} for \"{t}\".",
                      "Put \"{t}\" into {l}."])
    result = " ".join(invented(rng).lower() for _ in words.split())
    return ask.format(t=words, l=language), {"text": words, "language": language}, {"translation": result}, f"In {language}: {result}", f"\"{words}\" in {language}"


def get_time(rng):
    where, clock = city(rng), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    ask = rng.choice(["What time is it in {c}?", "Time in {c}?", "Tell me the time in {c}.", "What is the time in {c}?", "How late is it in {c}?", "Give me the local time in {c}.",
                      "time {c}", "Please check the time in {c}.", "What's the clock in {c}?", "Current time in {c}, please."])
    return ask.format(c=where), {"city": where}, {"time": clock}, f"It is {clock} in {where}.", f"the time in {where}"


def send_message(rng):
    person = rng.choice(PEOPLE) if rng.random() < 0.7 else invented(rng)
    words = phrase(rng)
    ask = rng.choice(["Send \"{t}\" to {p}.", "Send a message to {p}: {t}", "Tell {p}: {t}", "Message {p} \"{t}\".", "Write to {p}: {t}", "Please send {p} the message \"{t}\".",
                      "Text {p} \"{t}\".", "Let {p} know: {t}", "Send {p} this: {t}", "Can you send \"{t}\" to {p}?"])
    return ask.format(t=words, p=person), {"to": person, "text": words}, {"status": "sent"}, f"The message to {person} is sent.", f"a message to {person}"


MAKERS = {f.__name__: f for f in (get_weather, add, multiply, convert_units, search_docs, read_file, set_timer, translate, get_time, send_message)}
OTHER_REQUESTS = ["Book a flight to {c}.", "Order a pizza.", "Play some music.", "Buy a {a} {n}.", "Call {p}.", "Tell me a joke.", "Find a hotel in {c}.", "Delete {f}.", "Turn on the light.",
                  "Draw a {a} {n}.", "What is the population of {c}?", "Write a song about the {n}.", "Rename {f}.", "Reserve a table in {c}.", "Who won the game in {c}?", "Print a {n}."]
UNMATCHED_REPLY = "None of the functions that I have can do that."


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def tools_turn(names, system):
    lines = "\n".join(dumps(TOOLS[name]) for name in names)
    return turn("system", (system + "\n\n" if system else "") + "# Tools\n\nThese functions may be called:\n<tools>\n" + lines + "\n</tools>\n\nTo call one, answer with:\n<tool_call>\n"
                "{\"name\": function name, \"arguments\": {argument: value}}\n</tool_call>")


def call_text(name, arguments):
    return "<tool_call>\n" + dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def other_request(rng, listed):
    if rng.random() < 0.5:
        return MAKERS[rng.choice([n for n in MAKERS if n not in listed])](rng)[0]
    return rng.choice(OTHER_REQUESTS).format(c=city(rng), a=rng.choice(ADJECTIVES), n=rng.choice(NOUNS), p=rng.choice(PEOPLE), f=file_path(rng))


def dialogue(rng):
    listed = rng.sample(list(TOOLS), rng.randint(1, 4))
    system = rng.choice(SYSTEMS[:1] + ["Be brief.", "Use the tools where they help."]) if rng.random() < 0.1 else ""
    start = tools_turn(listed, system)
    if rng.random() < PART_UNMATCHED:
        return start + turn("user", other_request(rng, listed)) + answer_turn("", UNMATCHED_REPLY)
    name = rng.choice(listed)
    request, arguments, result, reply, subject = MAKERS[name](rng)
    thought = f"The user wants {subject}. I call {name}." if rng.random() < PART_REASONED else ""
    out = start + turn("user", wrapped(request, rng)) + answer_turn(thought, call_text(name, arguments))
    if rng.random() < PART_ANSWERED:
        out += turn("user", f"<tool_response>\n{dumps(result)}\n</tool_response>") + answer_turn("", reply)
    return out


def chats():
    rng = random.Random(SEED)
    held = heldout()
    calls = {call_text(row["name"], row["arguments"]) for row in held}
    values = [str(v) for row in held for k, v in row["arguments"].items() if k in ("city", "path", "query", "text", "to") or (k == "a")]
    reserved = re.compile(r"\b(" + "|".join(re.escape(v) for v in values) + r")\b")
    rows = []
    while len(rows) < N_DIALOGUES:
        made = dialogue(rng)
        if not reserved.search(made) and not any(call in made for call in calls):
            rows.append({"kind": "tool", "text": made})
    for row in held:
        assert not any(row["request"] in made["text"] for made in rows), f"held-out request in training: {row['request']}"
    return rows


def heldout():
    """20 requests with the call that each asks for; 1 to 4 functions are listed."""
    rows = [
        (["get_weather", "read_file"], "I'm flying out to Paris tomorrow, what's it like outside there?", "get_weather", {"city": "Paris"}),
        (["add", "get_weather", "set_timer"], "Lisbon: report its weather, measured in celsius.", "get_weather", {"city": "Lisbon", "unit": "celsius"}),
        (["get_weather"], "My aunt lives in Reykjavik. Fetch the fahrenheit weather where she is.", "get_weather", {"city": "Reykjavik", "unit": "fahrenheit"}),
        (["add", "multiply"], "Take 4817 and put 266 on top, by addition.", "add", {"a": 4817, "b": 266}),
        (["translate", "add", "read_file"], "If I add 73.5 with 1904, which number comes out?", "add", {"a": 73.5, "b": 1904}),
        (["multiply", "convert_units", "add"], "Work out 318 times 47 and report back.", "multiply", {"a": 318, "b": 47}),
        (["multiply"], "I'd like 92 multiplied by 615, thanks.", "multiply", {"a": 92, "b": 615}),
        (["convert_units", "set_timer"], "A walk of 17 miles: that distance in kilometers, if you please.", "convert_units", {"value": 17, "from": "miles", "to": "kilometers"}),
        (["get_time", "convert_units", "translate"], "Need to know what 640 grams would be when given in pounds.", "convert_units", {"value": 640, "from": "grams", "to": "pounds"}),
        (["search_docs", "read_file", "translate"], "Dig through the docs regarding closure lifetime, would you?", "search_docs", {"query": "closure lifetime"}),
        (["search_docs"], "Hunt in the documentation for atomic ordering but return just 7 results.", "search_docs", {"query": "atomic ordering", "limit": 7}),
        (["read_file", "send_message"], "Let me have a look at what crates/parser/notes.toml holds.", "read_file", {"path": "crates/parser/notes.toml"}),
        (["set_timer", "get_weather", "read_file", "add"], "Fetch docs/router_42.md so that I can check its text.", "read_file", {"path": "docs/router_42.md"}),
        (["set_timer", "get_time"], "My tea wants 37 minutes; keep the time for me with a timer.", "set_timer", {"minutes": 37}),
        (["read_file", "set_timer"], "Please ring after 144 minutes have gone by.", "set_timer", {"minutes": 144}),
        (["translate"], "My guest asks for \"the blue bridge\" and speaks only Swedish: translate it.", "translate", {"text": "the blue bridge", "language": "Swedish"}),
        (["send_message", "translate", "add"], "Render \"good coffee near the market\" in Portuguese for the menu.", "translate", {"text": "good coffee near the market", "language": "Portuguese"}),
        (["get_time", "get_weather"], "My office in Singapore: which time do their clocks show?", "get_time", {"city": "Singapore"}),
        (["search_docs", "get_time", "multiply"], "Edinburgh's local time would be good to have.", "get_time", {"city": "Edinburgh"}),
        (["send_message", "set_timer", "get_weather"], "Nora should get this message from me: \"we need a quiet table\".", "send_message", {"to": "Nora", "text": "we need a quiet table"}),
    ]
    return [{"tools": [TOOLS[t] for t in tools], "request": request, "name": name, "arguments": arguments} for tools, request, name, arguments in rows]
