"""Random tool dialogues: some functions listed in the system message, a request, the call, the result, the reply.

`chats` makes the training dialogues, `heldout` the 20 requests that no training dialogue has: other values, other phrasings.
Values are drawn from wide sets, so that copying them is what is learned. Seeds are fixed.
"""
import json, random, re
from questions import SYSTEMS, answer_turn, turn, wrapped

SEED = 11
N_DIALOGUES = 8_000       # in chats-train.jsonl; toolgen.py makes the many
PART_ANSWERED = 0.15      # the rest ends with the call
PART_UNMATCHED = 0.06     # no listed function can do what is asked
PART_REASONED = 0.05


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
PEOPLE = """Aaron Ada Adam Adele Agnes Ahmed Aisha Alan Albert Alex Amina Amir Amy Andrea Andrew Angela Anita Anton Arthur Astrid Barbara Bella Bernd Bettina Boris Brian
Bruno Carla Carlos Cecilia Chen Chiara Chris Claire Conrad Dana Daniel Daria Diana Diego Dora Edgar Elena Eli Elisa Ella Emil Erik Esther Eva Fatima Fiona Flora
Francesca Fred Gabriel George Gloria Greta Gustav Hana Hannah Harry Heidi Helen Henry Hilda Igor Ingrid Isaac Isabel Ivan Jakob James Jan Jane Jasmin Jenny Jens Joan
John Josef Julia Kai Kamal Karl Katja Kenji Kim Klaus Lara Lars Laura Lea Lena Linda Lisa Lotte Louis Lucas Lucy Luis Magda Malik Marco Marta Martin Mary Max Mia
Michael Miguel Mira Naomi Natalie Nick Nina Omar Oscar Pablo Pavel Peter Pia Priya Rachel Rafael Rebecca Renate Rita Robert Roman Ruth Sam Samir Sandra Sergei Silvia
Sofia Sonja Stefan Susan Sven Tanja Thomas Tim Tobias Ulrich Valerie Victor Yara Yuki Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Karin Leo Maria Noah Olga Paul Rosa Simon Tina Viktor Wendy Xavier Yusuf Zoe Alice Bob Carol Dan
Eve Frank Gina Hans Irene Jack Kate Liam Mona Nils Otto Petra Quinn Ralf Sara Tom Ursula Vera Walter""".split()
LANGUAGES = "Norwegian Icelandic Hungarian Romanian Bulgarian Serbian Croatian Slovak Slovenian Ukrainian Russian Estonian Latvian Lithuanian Hebrew Persian Urdu Bengali Tamil Thai\
 Vietnamese Indonesian Malay Chinese Mongolian Swahili Zulu Welsh Irish Basque Catalan Maltese Albanian Georgian Armenian English Esperanto Nepali Somali Yoruba Samoan French German Spanish Italian Portuguese Dutch Swedish Danish Polish Czech Turkish Greek Japanese Korean Hindi Finnish Latin Arabic".split()
UNITS = {  # unit: (kind, factor to the first unit of its kind)
    "meters": ("length", 1.0), "kilometers": ("length", 1000.0), "miles": ("length", 1609.344), "feet": ("length", 0.3048), "inches": ("length", 0.0254),
    "centimeters": ("length", 0.01), "yards": ("length", 0.9144), "grams": ("mass", 1.0), "kilograms": ("mass", 1000.0), "pounds": ("mass", 453.59237),
    "ounces": ("mass", 28.349523), "tons": ("mass", 1_000_000.0), "liters": ("volume", 1.0), "gallons": ("volume", 3.785412), "milliliters": ("volume", 0.001),
    "cups": ("volume", 0.24), "seconds": ("time", 1.0), "minutes": ("time", 60.0), "hours": ("time", 3600.0), "days": ("time", 86400.0), "weeks": ("time", 604800.0),
    "bytes": ("data", 1.0), "kilobytes": ("data", 1e3), "megabytes": ("data", 1e6), "gigabytes": ("data", 1e9), "terabytes": ("data", 1e12),
    "millimeters": ("length", 0.001), "decimeters": ("length", 0.1), "fathoms": ("length", 1.8288), "furlongs": ("length", 201.168), "milligrams": ("mass", 0.001), "stones": ("mass", 6350.29318),
    "carats": ("mass", 0.2), "pints": ("volume", 0.473176), "quarts": ("volume", 0.946353), "barrels": ("volume", 158.987295), "deciliters": ("volume", 0.1), "teaspoons": ("volume", 0.00492892),
    "tablespoons": ("volume", 0.0147868), "milliseconds": ("time", 0.001), "months": ("time", 2629800.0), "years": ("time", 31557600.0), "decades": ("time", 315576000.0),
    "acres": ("area", 4046.8564), "hectares": ("area", 10000.0), "joules": ("energy", 1.0), "calories": ("energy", 4.184), "watts": ("power", 1.0), "kilowatts": ("power", 1000.0),
    "horsepower": ("power", 745.699872), "knots": ("speed", 0.514444), "bits": ("data", 0.125), "degrees": ("angle", 1.0), "radians": ("angle", 57.29578)}
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
MORE_CITIES = """Adak|Adelaide|Anadyr|Anchorage|Aqtau|Aqtobe|Araguaina|Astrakhan|Atikokan|Atyrau|Azores|Bahia|Bahia Banderas|Barnaul|Belem|Berlin|Beulah|Boa Vista|Boise|
Bougainville|Broken Hill|Busingen|Cambridge Bay|Campo Grande|Canary|Cancun|Casey|Catamarca|Center|Ceuta|Chatham|Chihuahua|Chita|Chuuk|Ciudad Juarez|
Cordoba|Coyhaique|Creston|Cuiaba|Danmarkshavn|Darwin|Davis|Dawson|Dawson Creek|Easter|Edmonton|Eirunepe|Eucla|Famagusta|Fort Nelson|Fortaleza|Galapagos|
Gambier|Gaza|Glace Bay|Goose Bay|Guayaquil|Halifax|Hebron|Hermosillo|Hobart|Honolulu|Hovd|Indianapolis|Inuvik|Iqaluit|Irkutsk|Jayapura|Jujuy|Juneau|
Kaliningrad|Kamchatka|Kanton|Khandyga|Kinshasa|Kiritimati|Kirov|Knox|Kosrae|Krasnoyarsk|Kuching|Kwajalein|La Rioja|Lindeman|Lord Howe|Louisville|
Lubumbashi|Maceio|Macquarie|Madeira|Magadan|Majuro|Makassar|Manaus|Marengo|Marquesas|Matamoros|Mawson|Mazatlan|Mendoza|Menominee|Merida|Metlakatla|
Midway|Moncton|Monterrey|Monticello|Moscow|New Salem|Nicosia|Nome|Noronha|Novokuznetsk|Novosibirsk|Nuuk|Ojinaga|Omsk|Oral|Palmer|Pohnpei|Pontianak|
Port Moresby|Porto Velho|Punta Arenas|Qostanay|Qyzylorda|Rankin Inlet|Recife|Regina|Resolute|Rio Branco|Rio Gallegos|Rothera|Sakhalin|Salta|Samara|
Samarkand|San Juan|San Luis|Santarem|Saratov|Scoresbysund|Simferopol|Sitka|Srednekolymsk|St Johns|Swift Current|Syowa|Tahiti|Tarawa|Tashkent|Tell City|
Thule|Tijuana|Tomsk|Troll|Tucuman|Ulaanbaatar|Ulyanovsk|Urumqi|Ushuaia|Vevay|Vincennes|Vladivostok|Volgograd|Vostok|Wake|Whitehorse|Winamac|Winnipeg|
Yakutat|Yakutsk|Yekaterinburg""".replace("\n", "").split("|")
CONDITIONS = "sunny cloudy rainy windy snowy foggy clear stormy".split()


WORDS, SNIPPETS = [], []      # of the pages; see use_words


def words_of(pages, n_snippets=12_000):
    """{"words": ..., "snippets": ...} of the training pages: every word of letters, and runs of one to eight words, for values to copy."""
    text = "\n".join(p["text"] for p in pages)
    words = sorted(set(re.findall(r"(?<![A-Za-z_:.])[A-Za-z]{2,14}(?![A-Za-z_:(])", text)))
    runs = sorted(set(re.findall(r"(?<=[a-z] )[a-z]{1,12}(?: [a-z]{1,12}){1,7}(?=[ .,])", text)))
    random.Random(SEED).shuffle(runs)
    return {"words": words, "snippets": runs[:n_snippets]}


def use_words(made):
    WORDS[:], SNIPPETS[:] = made["words"], made["snippets"]


def invented(rng):
    return "".join(rng.choice(SOUNDS) for _ in range(rng.randint(2, 4))).capitalize()


def name(rng, known):
    """A known name, an invented one, or a word of the pages as a name, so that every token gets copied."""
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(known)
    if roll < 0.65 or not WORDS:
        return invented(rng)
    if roll < 0.75:       # a word with another one's end
        a, b = rng.choice(WORDS), rng.choice(WORDS)
        return (a[:rng.randint(2, 4)] + b[-rng.randint(2, 5):]).capitalize()
    return rng.choice(WORDS).capitalize()


def city(rng):
    return name(rng, CITIES if rng.random() < 0.5 else MORE_CITIES)


def number(rng):
    roll = rng.random()
    if roll < 0.7:
        digits = rng.randint(1, 5)
        return rng.randint(10 ** (digits - 1), 10 ** digits - 1)
    if roll < 0.94:
        return round(rng.uniform(0, 10 ** rng.randint(1, 4)), rng.randint(1, 2)) or 1.5
    return -rng.randint(1, 500)


def file_path(rng):
    def part(known):
        return rng.choice(known) if rng.random() < 0.6 or not WORDS else rng.choice(WORDS).lower()
    stem = part(STEMS)
    if rng.random() < 0.35:
        stem += rng.choice(["_", "-", ""]) + rng.choice([part(STEMS), str(rng.randint(1, 999)), str(rng.randint(1, 99))])
    parts = [part(FOLDERS) for _ in range(rng.randint(0, 3))]
    return rng.choice(["", "", "", "", "/", "./"]) + "/".join([*parts, f"{stem}.{rng.choice(ENDINGS)}"])


PLACES = "near|behind|in front of|beside|opposite|under|at|from|to|for|without|with|by|in|on|after|before".split("|")
PEOPLE_DO = "we meet|I arrive|she waits|he works|they eat|we need help|I will call|please come|do not wait|bring water|I am late|let us go|it was|that is|have you seen|who took|keep|buy|sell|clean|find".split("|")


def thing(rng):
    return rng.choice(["the ", "a ", "my ", "your ", "our ", "", "some "]) + rng.choice([rng.choice(ADJECTIVES) + " ", "", ""]) + rng.choice(NOUNS)


def phrase(rng):
    """One to eight words of English."""
    roll = rng.random()
    if roll < 0.1:
        out = rng.choice(NOUNS)
    elif roll < 0.25:
        out = thing(rng)
    elif roll < 0.4:
        out = f"{thing(rng)} {rng.choice(PLACES)} {thing(rng)}"
    elif roll < 0.55:
        out = f"{rng.choice(PEOPLE_DO)} {thing(rng)}" + rng.choice(["", f" {rng.choice(PLACES)} {thing(rng)}"])
    elif roll < 0.65 or not WORDS:
        out = f"{rng.choice(OPENERS).strip()} {rng.choice([rng.choice(ADJECTIVES) + ' ', ''])}{rng.choice(NOUNS)}"
    elif roll < 0.8:
        out = " ".join(rng.choice(WORDS).lower() for _ in range(rng.randint(1, 5)))
    else:
        out = rng.choice(SNIPPETS)
    return out[:1].upper() + out[1:] if rng.random() < 0.12 else out


def topic(rng):
    roll = rng.random()
    if roll < 0.45 or not WORDS:
        return " ".join(rng.sample(TOPICS, rng.randint(1, 3)))
    if roll < 0.85:
        return " ".join(rng.choice([rng.choice(TOPICS), rng.choice(WORDS).lower()]) for _ in range(rng.randint(1, 4)))
    return " ".join(rng.choice(SNIPPETS).split()[:4])


# How a wish is put around what is wanted: an order ("check the weather in X"), a thing ("the weather in X") or a whole sentence.
ORDER = """{o}|{o}.|{o}.|{o}!|please {o}.|{o}, please.|can you {o}?|could you {o}?|could you please {o}?|will you {o}?|I want you to {o}.|I would like you to {o}.|
you should {o}.|now {o}.|first, {o}.|next, {o}.|can you {o} for me?|I need you to {o}.|be so kind and {o}.|is it possible to {o}?|are you able to {o}?|let's {o}.|
hey, {o}.|quickly {o}.|just {o}.|I am asking you to {o}.|your task is to {o}.|try to {o}.|would you mind? {o}.|do me a favor and {o}.|go ahead and {o}.|I need to {o}.|
I want to {o}.|help me to {o}.|how can I {o}?|time to {o}.|{o} for me.|{o} now.|{o} and tell me.|{o}, then tell me.|{o} and give me the result.|{o} and show me the outcome.""".replace("\n", "").split("|")
THING = """{t}?|{t}, please.|{t}.|{t}|I need {t}.|give me {t}.|tell me {t}.|what is {t}?|what's {t}?|do you know {t}?|I would like {t}.|I'd love to have {t}.|I want {t}.|can I have {t}?|
could I get {t}?|show me {t}.|find {t}.|get {t}.|get me {t}.|find out {t}.|what about {t}?|how about {t}?|let me know {t}.|I am asking for {t}.|my question is about {t}.|I am curious about {t}.|
please tell me {t}.|please give me {t}.|can you tell me {t}?|could you find {t}?|can you get {t}?|is there a way to get {t}?|I have to know {t}.|I must have {t}.|I wonder about {t}.|
help me with {t}.|I am looking for {t}.|we need {t}.|my boss wants {t}.|my friend asked for {t}.|{t} is what I need.|{t} is what I want.|{t} would help me.|{t} would be great.|
{t} is needed here.|{t}: can you get it?|{t}: what is it?|all I want is {t}.|today I need {t}.|kindly provide {t}.|bring me {t}.|it is {t} that I want.""".replace("\n", "").split("|")
AHEAD = """I have a question.|Quick one.|I am in a hurry.|Here is a task.|I am planning something.|My boss asked me.|We are preparing a trip.|It is for school.|This is for work.|One thing.|
I forgot it.|I need your help.|We are at the table.|I am writing a report.|My phone is broken.|Good morning.|Good evening.|I am back.|I am new here.|Next task.|Sorry to bother you.|
We talked about it.|My friend wants to know.|There is something I need.|I can't do it myself.|You have the tools.|So,|Okay,|Well,|Listen,|Right,|Alright,|Friend,|Assistant,""".replace("\n", "").split("|")
BEHIND = """It is urgent.|I am in a hurry.|I need it for work.|It is for a friend.|My boss is waiting.|Take your time.|That would be all.|Nothing else.|Be quick.|I can't look it up myself.|
I hope you can.|I forgot it.|We need it today.|It is important.|I will wait.|Then we are done.|You would help me a lot.|I appreciate it.|Thank you very much.|If possible.|
I will write it down.|My phone is off.|It is for my report.|We leave soon.""".replace("\n", "").split("|")


def capital(text, rng):
    return text if rng.random() < 0.08 else text[:1].upper() + text[1:]


def surrounded(request, rng):
    roll = rng.random()
    if roll < 0.12:
        request = rng.choice(AHEAD) + " " + request
    elif roll < 0.24:
        request = request + ("" if request[-1] in ".?!" else ".") + " " + rng.choice(BEHIND)
    return request


def ask(rng, orders, things, whole, **values):
    """A request out of orders, things or whole sentences (lists of templates); values are put in last, so that braces in them do no harm."""
    roll = rng.random()
    if roll < 0.34:
        out = rng.choice(ORDER).replace("{o}", rng.choice(orders))
    elif roll < 0.60 and things:
        out = rng.choice(THING).replace("{t}", rng.choice(things))
    else:
        out = rng.choice(whole)
    if not out.startswith("{"):
        out = capital(out, rng)
    return re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]), out)


def listed(text):
    return text.replace("\n", "").split("|")


def plain(value):
    """A number as the replies write it."""
    return str(int(value)) if float(value).is_integer() else f"{round(value, 4):g}" if abs(value) < 1e5 else str(round(value, 2))


WEATHER = (listed("check the weather in {c}|look up the weather in {c}|tell me the weather in {c}|tell me how the weather is in {c}|find out how warm it is in {c}|see if it rains in {c}|get {c}'s weather|"
                  "look at the weather of {c}|show the weather for {c}|describe the sky over {c}|give me the forecast for {c}|say how cold it is in {c}|check if {c} is sunny|see how hot {c} is"),
           listed("the weather in {c}|the weather of {c}|{c}'s weather|the current weather in {c}|the temperature in {c}|the forecast for {c}|today's weather in {c}|the weather at {c}|the weather conditions in {c}|weather data for {c}|{c} weather"),
           listed("How is the weather in {c}?|What's the weather like in {c}?|Is it cold in {c}?|Is it warm in {c} today?|Do I need a coat in {c}?|weather {c}|{c} weather|Is it raining in {c} now?|Will I need an umbrella in {c}?|"
                  "I am going to {c}. How is the weather there?|I travel to {c} next. Is it cold there?|We drive to {c} tonight, how is the weather?|{c}: how is the weather?|{c}, is it sunny there?|In {c}, is it windy?|"
                  "My brother moved to {c}. What weather does he have?|My sister is in {c}. Tell me the weather at her place.|I have a friend in {c}, is it snowing at her home?|Does the sun shine in {c}?|How does the sky look in {c}?|"
                  "How hot does it get in {c}?|What should I wear in {c}?|Before I leave for {c}: what's the weather there?|They are on holiday in {c}. Is it nice there?|{c} is where I go on Monday. How warm is it there?|"
                  "Is {c} sunny?|Is {c} cold now?|For {c}: weather, please.|Today I visit {c}. Do I need an umbrella?|We are landing in {c} soon, what is the weather there?|How are the conditions in {c}?"))
WEATHER_UNIT = (listed("check the weather in {c} in {u}|look up how warm it is in {c}, in {u}|tell me the temperature in {c} in degrees {u}|get the weather for {c} in {u}|show {c}'s weather in {u}|use {u} and give me the weather in {c}|"
                       "give me the {u} weather of {c}|find the {u} temperature in {c}|look at the weather in {c} with {u} as the unit"),
                listed("the weather in {c} in {u}|the {u} temperature in {c}|{c}'s temperature in {u}|the temperature of {c} in degrees {u}|the {u} weather of {c}|the weather in {c} with {u} degrees|{c}'s {u} weather|the forecast for {c} (in {u})"),
                listed("How warm is it in {c}, in {u}?|weather {c} {u}|How cold is {c} in {u}?|In {u}, how warm is {c}?|{c}: the temperature in {u}, please.|{c}, how warm in {u}?|I think in {u}. How cold is it in {c}?|"
                       "I go to {c}. What is the weather there in {u}?|My brother moved to {c}. What is the temperature at his place in {u}?|My sister is in {c}. Tell me her weather in degrees {u}.|Use {u}: how is the weather in {c}?|"
                       "How many degrees {u} does {c} have?|Weather for {c}, unit {u}.|With {u} as the unit, what is the weather in {c}?|We are in {c} tomorrow. Weather there, {u} please.|Is it hot in {c}? Answer in {u}.|"
                       "How is the weather in {c}? I want {u}.|{u} only, please: how warm is {c}?|I have a friend in {c}. Show me the {u} temperature at her home."))


def get_weather(rng):
    where, unit = city(rng), rng.choice([None, None, "celsius", "fahrenheit"])
    degrees, sky = rng.randint(-15, 40), rng.choice(CONDITIONS)
    shown = unit or "celsius"
    if shown == "fahrenheit":
        degrees = degrees * 9 // 5 + 32
    return (ask(rng, *(WEATHER_UNIT if unit else WEATHER), c=where, u=unit), {"city": where, **({"unit": unit} if unit else {})},
            {"temperature": degrees, "unit": shown, "condition": sky}, f"It is {degrees} degrees {shown} and {sky} in {where}.", f"the weather in {where}")


ADD = (listed("add {a} and {b}|add {a} plus {b}|compute {a} + {b}|calculate {a} plus {b}|sum {a} and {b}|sum up {a} and {b}|add up {a} and {b}|find the sum of {a} and {b}|put {a} and {b} together|add the numbers {a} and {b}|"
              "tell me what {a} plus {b} is|calculate the sum of {a} and {b}|take {a} and add {b}|total {a} and {b}|start with {a} and add {b}"),
       listed("the sum of {a} and {b}|{a} plus {b}|{a} + {b}|the total of {a} and {b}|the result of {a} plus {b}|the result of adding {a} and {b}|the sum {a} + {b}|what {a} and {b} make together|the value of {a} + {b}"),
       listed("How much is {a} plus {b}?|{a} + {b}|{a}+{b}|{a} and {b}: what is the sum?|What do {a} and {b} make together?|What do I get when I add {a} and {b}?|What do you get from {a} plus {b}?|I have {a} and get {b} more. How many are that?|"
              "There are {a} apples here and {b} there. How many in all?|{a} and then {b} more, how much is it?|When {a} and {b} are added, what is the result?|{a} plus {b} is how much?|What does {a} plus {b} give?|"
              "Given {a} and {b}, what is their sum?|With {a} on one side and {b} on the other, what is the total?|The first number is {a}, the second {b}: what is the sum?|If we add {a} and {b}, what is the total?|{a} plus {b} makes?|"
              "I paid {a} and then {b}. What is the total?|My numbers are {a} and {b}. Add them.|Two numbers, {a} and {b}: add them up."))


def add(rng):
    a, b = number(rng), number(rng)
    total = round(a + b, 4)
    return ask(rng, *ADD, a=a, b=b), {"a": a, "b": b}, {"result": total}, f"{a} plus {b} is {total}.", f"the sum of {a} and {b}"


MULTIPLY = (listed("multiply {a} by {b}|multiply {a} and {b}|multiply {a} with {b}|compute {a} * {b}|calculate {a} times {b}|find the product of {a} and {b}|tell me what {a} times {b} is|take {a} times {b}|calculate the product of {a} and {b}|"
                   "compute {a} x {b}|form the product of {a} and {b}|multiply the numbers {a} and {b}|figure out {a} times {b}"),
            listed("the product of {a} and {b}|{a} times {b}|{a} * {b}|{a} x {b}|the result of {a} times {b}|the result of multiplying {a} by {b}|the product {a} * {b}|the value of {a} x {b}|{a} multiplied with {b}"),
            listed("How much is {a} times {b}?|{a} x {b}|{a} * {b}|{a}*{b}|{a} and {b}: what is the product?|What do I get when I multiply {a} by {b}?|{a} boxes with {b} pieces each: how many pieces?|There are {a} rows of {b} seats. How many seats?|"
                   "When {a} and {b} are multiplied, what is the result?|{a} times {b} is how much?|What does {a} times {b} give?|Given {a} and {b}, what is their product?|The first number is {a}, the second {b}: what is the product?|"
                   "If we multiply {a} by {b}, what comes?|{a} times {b} makes?|I buy {a} of them at {b} each. What do I pay?|My numbers are {a} and {b}. Multiply them.|Two numbers, {a} and {b}: multiply them."))


def multiply(rng):
    a, b = number(rng), number(rng)
    result = round(a * b, 4)
    return ask(rng, *MULTIPLY, a=a, b=b), {"a": a, "b": b}, {"result": result}, f"{a} times {b} is {result}.", f"the product of {a} and {b}"


CONVERT = (listed("convert {v} {s} to {e}|convert {v} {s} into {e}|change {v} {s} to {e}|turn {v} {s} into {e}|express {v} {s} in {e}|write {v} {s} in {e}|tell me how many {e} are {v} {s}|calculate {v} {s} in {e}|show {v} {s} as {e}|"
                  "translate {v} {s} to {e}|give me {v} {s} in {e}|convert from {s} to {e}: {v}|find out how many {e} {v} {s} make|take {v} {s} and convert them to {e}|measure {v} {s} in {e}"),
           listed("{v} {s} in {e}|{v} {s} as {e}|{v} {s} to {e}|the value of {v} {s} in {e}|the number of {e} in {v} {s}|the conversion of {v} {s} to {e}|{v} {s} expressed in {e}|{v} {s} converted to {e}|the amount of {e} for {v} {s}"),
           listed("How many {e} are {v} {s}?|How many {e} are in {v} {s}?|{v} {s} in {e}|How much is {v} {s} in {e}?|I have {v} {s}. How many {e} is that?|{v} {s}: how many {e}?|{v} {s} are how many {e}?|In {e}, what are {v} {s}?|"
                  "In {e}, how much is {v} {s}?|convert {v} {s} {e}|{v} {s} equals how many {e}?|To {e} from {s}: {v}|If I have {v} {s}, how many {e} do I have?|The package says {v} {s}. What is it in {e}?|It is {v} {s}, but I need {e}.|"
                  "We measured {v} {s}; give it in {e}.|The recipe needs {v} {s}. How much is that in {e}?|I only know {e}. What are {v} {s}?|How would you write {v} {s} in {e}?|What do {v} {s} make in {e}?|{v} {s} is how much in {e}?|"
                  "The answer should be in {e}: {v} {s}.|My list says {v} {s}, I want {e}.|From {v} {s} to {e}, please."))


def convert_units(rng):
    start = rng.choice(list(UNITS))
    same = [u for u in UNITS if UNITS[u][0] == UNITS[start][0] and u != start]
    # Now and then units of two kinds: which ones are named is to be copied, not guessed.
    end = rng.choice(same) if same and rng.random() < 0.75 else rng.choice([u for u in UNITS if u != start])
    value = abs(number(rng))
    result = float(f"{value * UNITS[start][1] / UNITS[end][1]:.5g}")
    result = int(result) if result.is_integer() else result
    return (ask(rng, *CONVERT, v=value, s=start, e=end), {"value": value, "from": start, "to": end}, {"result": result}, f"{value} {start} are {result} {end}.",
            f"{value} {start} in {end}")


SEARCH = (listed("search the docs for {q}|look up {q} in the documentation|find pages about {q}|search for {q}|search docs for {q}|search the documentation for {q}|find {q} in the docs|look for {q} in the docs|check the docs for {q}|"
                 "scan the documentation for {q}|see what the docs say about {q}|search everything about {q}|look into the documentation on {q}|browse the docs for {q}|query the docs for {q}|go through the documentation on {q}|find documentation regarding {q}"),
          listed("documentation about {q}|the docs on {q}|pages about {q}|documentation pages on {q}|what the docs say about {q}|doc pages regarding {q}|the documentation of {q}|information about {q} from the docs|docs for {q}|a search for {q}"),
          listed("What do the docs have on {q}?|search docs {q}|{q}: search the docs.|{q} - is it in the documentation?|Is there documentation about {q}?|Where do the docs explain {q}?|I need to read about {q}. Search the docs.|"
                 "Search the documentation: {q}|I don't understand {q}. Find the pages.|Regarding {q}, what is in the docs?|About {q}: look in the docs.|Which pages mention {q}?|Does the documentation cover {q}?|docs: {q}|"
                 "The documentation must say something about {q}. Find it.|What is written on {q} in the documentation?|I am studying {q}; search the docs for it."))
SEARCH_LIMIT = (listed("search the docs for {q}, at most {n} results|find {n} pages about {q}|search for {q} and show {n} results|look up {q} in the documentation, limit {n}|show the first {n} hits for {q} in the docs|"
                       "search the documentation for {q} with a limit of {n}|find the top {n} entries on {q}|search the documentation for {q} and return {n} results|check the docs for {q}, but only {n} results|look for {q} in the docs and stop after {n} hits|"
                       "scan the docs for {q} and list no more than {n} results|get {n} results for {q} from the docs|limit the search for {q} to {n} results|find {q} in the docs with {n} results"),
                listed("{n} results for {q}|the top {n} pages about {q}|{n} doc pages on {q}|the first {n} results for {q}|{n} hits for {q} in the docs|documentation about {q}, {n} results|the docs on {q}, only {n} entries|not more than {n} results for {q}"),
                listed("search docs {q} limit {n}|I want {n} results about {q}.|{q}: search the docs, {n} results.|What do the docs have on {q}? Show {n} results.|Which {n} pages mention {q}?|Search the documentation: {q}. Limit: {n}.|"
                       "About {q}: look in the docs, {n} results are enough.|I need to read about {q}. Give me {n} pages.|Only {n} results, please: search for {q}.|With at most {n} results, search the docs for {q}.|Are there {n} pages about {q}?|"
                       "Search for {q} in the documentation but show me only {n}.|Up to {n} results on {q} from the docs."))


def search_docs(rng):
    query, limit = topic(rng), rng.choice([None, None, rng.randint(1, 50)])
    hits = [f"{rng.choice(FOLDERS)}/{rng.choice(TOPICS)}.html" for _ in range(rng.randint(1, 2))]
    return (ask(rng, *(SEARCH_LIMIT if limit else SEARCH), q=query, n=limit), {"query": query, **({"limit": limit} if limit else {})}, {"results": hits},
            f"The documentation has this about {query}: {', '.join(hits)}.", f"documentation about {query}")


READ = (listed("read {p}|read the file {p}|show me {p}|open {p}|open the file {p}|read `{p}`|show the contents of {p}|print {p}|print the file {p}|look into {p}|load {p}|display {p}|give me the content of `{p}`|tell me what is in {p}|"
               "see what {p} says|get the text of {p}|look at {p}|check what is written in {p}|list the contents of {p}|view {p}|take a look into \"{p}\""),
        listed("the content of {p}|the contents of {p}|the text of {p}|the file {p}|what is in {p}|the text in `{p}`|what {p} contains|everything in {p}|the lines of {p}|{p}'s content"),
        listed("What is in {p}?|What does {p} say?|cat {p}|What is written in {p}?|{p}: what is in it?|{p} - open it.|I want to see {p}.|What does the file {p} contain?|Which text is in {p}?|There is a file {p}. Read it.|"
               "I saved something in {p}. What was it?|Somebody changed {p}. Show me.|My notes are in {p}, read them.|In {p}, what is written?|Is there anything in {p}?|less {p}|I can't remember what is in {p}.|"
               "The answer is in {p}. Open it.|I lost track of {p}; show it to me."))


def read_file(rng):
    path, content = file_path(rng), phrase(rng)
    return ask(rng, *READ, p=path), {"path": path}, {"content": content}, f"The file {path} contains: {content}", f"the file {path}"


TIMER = (listed("set a timer for {n} minutes|start a timer of {n} minutes|set a {n} minute timer|start a {n} minute timer|count down {n} minutes|set the timer to {n} minutes|remind me in {n} minutes|wake me in {n} minutes|wait {n} minutes and tell me|"
                "start the timer with {n} minutes|put {n} minutes on the timer|run a timer for {n} minutes|alert me in {n} minutes|time {n} minutes|beep in {n} minutes|notify me when {n} minutes are over"),
         listed("a timer for {n} minutes|a {n} minute timer|a timer of {n} minutes|an alarm in {n} minutes|a countdown of {n} minutes|a reminder in {n} minutes|a signal after {n} minutes|{n} minutes on the timer"),
         listed("Timer {n} minutes.|timer {n}|Let me know when {n} minutes are over.|{n} minutes, starting now.|{n} minutes: start the timer.|The eggs need {n} minutes. Start a timer.|My cake is in the oven for {n} minutes, set a timer.|"
                "I sleep for {n} minutes. Wake me then.|In {n} minutes I must leave. Set a timer.|The pasta takes {n} minutes, tell me when it is done.|We take a break of {n} minutes: timer, please.|After {n} minutes, give me a signal.|"
                "I have {n} minutes. Count them down.|When {n} minutes have passed, tell me.|The meeting lasts {n} minutes; use a timer.|It boils for {n} minutes, so start the timer.|{n} minutes from now I want an alarm."))


def set_timer(rng):
    minutes = rng.randint(1, 240)
    return ask(rng, *TIMER, n=minutes), {"minutes": minutes}, {"status": "started"}, f"The timer is set for {minutes} minutes.", f"a timer of {minutes} minutes"


TRANSLATE = (listed("translate \"{t}\" into {l}|translate \"{t}\" to {l}|translate '{t}' into {l}|say \"{t}\" in {l}|put \"{t}\" into {l}|write \"{t}\" in {l}|turn \"{t}\" into {l}|give me the {l} for \"{t}\"|tell me how to say \"{t}\" in {l}|"
                    "express \"{t}\" in {l}|translate this to {l}: \"{t}\"|translate the text \"{t}\" to {l}|make a {l} version of \"{t}\"|convert \"{t}\" to {l}|use {l} to say \"{t}\"|find the {l} words for \"{t}\"|translate to {l}: {t}"),
             listed("\"{t}\" in {l}|the {l} translation of \"{t}\"|the {l} words for \"{t}\"|the translation of \"{t}\" to {l}|the {l} version of \"{t}\"|\"{t}\" translated into {l}|a {l} translation for \"{t}\"|the {l} for \"{t}\""),
             listed("How do you say \"{t}\" in {l}?|translate \"{t}\" {l}|What does \"{t}\" mean in {l}?|{l}: \"{t}\"|\"{t}\": how is that in {l}?|\"{t}\" - in {l}, please.|In {l}, how do I say \"{t}\"?|How would someone from there say \"{t}\" in {l}?|"
                    "I am learning {l}. How do I say \"{t}\"?|She only understands {l}. Tell her \"{t}\" in that language.|He does not speak English, he speaks {l}. Translate \"{t}\" for him.|My neighbor knows {l} and wants \"{t}\" in it.|"
                    "My letter says \"{t}\". I need it in {l}.|The sign reads \"{t}\". What is it in {l}?|The text is \"{t}\" and the language is {l}.|Which {l} words mean \"{t}\"?|For the {l} class: translate \"{t}\".|\"{t}\" should be in {l} on the sign.|"
                    "Language: {l}. Text: \"{t}\".|I want to write \"{t}\" in {l} on a card.|How does \"{t}\" sound in {l}?|Speaking {l}, what is \"{t}\"?"))


def translate(rng):
    words, language = phrase(rng), rng.choice(LANGUAGES) if rng.random() < 0.8 else name(rng, LANGUAGES)
    result = " ".join(invented(rng).lower() for _ in words.split())
    return ask(rng, *TRANSLATE, t=words, l=language), {"text": words, "language": language}, {"translation": result}, f"In {language}: {result}", f"\"{words}\" in {language}"


TIME = (listed("tell me the time in {c}|check the time in {c}|look up the time in {c}|give me the local time in {c}|find out how late it is in {c}|show the time of {c}|get {c}'s time|say what time it is in {c}|look at the clock in {c}|"
               "find the current time in {c}|see how late it is in {c}|read the clock in {c}"),
        listed("the time in {c}|the local time in {c}|{c}'s time|the current time in {c}|the time of day in {c}|the hour in {c}|{c} time|the clock time in {c}|the time at {c}|the exact time in {c}"),
        listed("What time is it in {c}?|How late is it in {c}?|time {c}|{c} time|{c}: what time is it there?|{c}, how late is it there?|In {c}, what time is it?|I call somebody in {c}. What time is it there?|My brother moved to {c}. How late is it for him?|"
               "My sister is in {c}. What time does she have?|Is it night in {c}?|Is it already morning in {c}?|What does the clock say in {c}?|What hour is it in {c}?|Our team sits in {c}. What is the time at their desk?|We have a client in {c}: how late is it there?|"
               "Is it too late to phone {c}?|Are people in {c} still awake? Tell me the time.|Right now in {c}, what time is it?|My watch should show {c}. What time is it?|Before I call {c}: what time do they have?"))


def get_time(rng):
    where, clock = city(rng), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return ask(rng, *TIME, c=where), {"city": where}, {"time": clock}, f"It is {clock} in {where}.", f"the time in {where}"


SEND = (listed("send \"{t}\" to {p}|send a message to {p}: {t}|send {p} the message \"{t}\"|send {p} this: \"{t}\"|tell {p}: {t}|tell {p} \"{t}\"|message {p} \"{t}\"|write to {p}: {t}|write {p} \"{t}\"|text {p} \"{t}\"|text {p}: {t}|let {p} know: \"{t}\"|"
               "inform {p}: {t}|drop {p} a line: \"{t}\"|deliver \"{t}\" to {p}|pass \"{t}\" on to {p}|forward \"{t}\" to {p}|send the text \"{t}\" to {p}|write a message to {p} that says \"{t}\"|leave {p} the message \"{t}\""),
        listed("a message to {p}: \"{t}\"|the message \"{t}\" sent to {p}|a text to {p} that says \"{t}\"|\"{t}\" sent to {p}|a message for {p} with the words \"{t}\"|the words \"{t}\" delivered to {p}"),
        listed("message {p}: {t}|{p}: \"{t}\", send it.|For {p}: \"{t}\".|{p} is waiting for a message. Write \"{t}\".|{p} must know: \"{t}\".|{p} has to hear this: \"{t}\".|\"{t}\" - send it to {p}.|\"{t}\" is for {p}, send it.|"
               "My message to {p} is \"{t}\".|I want {p} to know this: \"{t}\".|I want {p} to read \"{t}\".|Make sure that {p} gets \"{t}\".|{p} needs a message: \"{t}\".|Say \"{t}\" to {p} in a message.|The message for {p} says: \"{t}\".|"
               "To {p}: {t}|{p} asked me, and my answer is \"{t}\". Send it.|Could {p} get a text that says \"{t}\"?|{p} would like to hear \"{t}\" from me."))


def send_message(rng):
    person, words = name(rng, PEOPLE), phrase(rng)
    return ask(rng, *SEND, t=words, p=person), {"to": person, "text": words}, {"status": "sent"}, f"The message to {person} is sent.", f"a message to {person}"


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
    listed = rng.sample(list(TOOLS), rng.choice([1, 1, 1, 2, 2, 2, 3, 3, 4]))
    system = rng.choice(SYSTEMS[:1] + ["Be brief.", "Use the tools where they help."]) if rng.random() < 0.1 else ""
    start = tools_turn(listed, system)
    if rng.random() < PART_UNMATCHED:
        return start + turn("user", other_request(rng, listed)) + answer_turn("", UNMATCHED_REPLY)
    name = rng.choice(listed)
    request, arguments, result, reply, subject = MAKERS[name](rng)
    thought = f"The user wants {subject}. I call {name}." if rng.random() < PART_REASONED else ""
    out = start + turn("user", wrapped(surrounded(request, rng), rng)) + answer_turn(thought, call_text(name, arguments))
    if rng.random() < PART_ANSWERED:
        out += turn("user", f"<tool_response>\n{dumps(result)}\n</tool_response>") + answer_turn("", reply)
    return out


def allowed():
    """Says whether a dialogue has neither a value of the held-out requests nor one of their calls or requests."""
    held = heldout()
    taboo = [call_text(row["name"], row["arguments"]) for row in held] + [row["request"] for row in held]
    values = [str(v) for row in held for k, v in row["arguments"].items() if k in ("city", "path", "query", "text", "to") or (k == "a")]
    reserved = re.compile(r"\b(" + "|".join(re.escape(v) for v in values) + r")\b")
    return lambda made: not reserved.search(made) and not any(t in made for t in taboo)


def some(n, seed):
    """n random dialogues."""
    rng, good, out = random.Random(seed), allowed(), []
    while len(out) < n:
        made = dialogue(rng)
        if good(made):
            out.append(made)
    return out


def chats():
    rows = [{"kind": "tool", "text": made} for made in some(N_DIALOGUES, SEED)]
    for row in heldout():
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
