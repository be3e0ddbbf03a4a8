"""Drives a running server with the clients of others.

    python3 check.py URL SCRIPTED_URL       every dialect through the openai and anthropic packages
    python3 check.py --long URL             a prompt of minutes through each of them, all at once

URL serves the demo model, SCRIPTED_URL a checkpoint of script_model.py whose answer is known to the
letter. Each check prints a line; the exit status says whether all passed.
"""
import concurrent.futures
import json
import sys
import time
import traceback
import urllib.request

import anthropic
import openai

import calls

QUESTION = [{"role": "user", "content": "What does Vec::push do?"}]
ANSWER = "Appends an element to the back of a collection."
SCRIPTED = "Hello! This is scripted: 1 < 2 && \"quotes\", tabs\tand \u00e9\u8a9e\U0001f600."
# The newest anthropic package has no parameter for it.
GREEDY = {"temperature": 0}
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Clients:
    def __init__(self, url, **more):
        self.url = url
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, **more)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, **more)

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(float(it.rsplit(" ", 1)[1]) for it in lines if it.startswith(name) and "#" not in it[:1])


@check
def models(demo, _):
    listed = demo.openai.models.list().data
    assert len(listed) == 1 and listed[0].id.startswith("demo-model"), listed
    assert demo.openai.models.retrieve(listed[0].id).id == listed[0].id
    assert [it.id for it in demo.anthropic.models.list().data] == [listed[0].id]


@check
def chat(demo, scripted):
    found = demo.openai.chat.completions.create(model="any", messages=QUESTION, temperature=0)
    choice = found.choices[0]
    assert choice.message.content.strip() == ANSWER and choice.finish_reason == "stop", found
    usage = found.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    found = scripted.openai.chat.completions.create(model="any", messages=QUESTION)
    assert found.choices[0].message.content == SCRIPTED, found


@check
def chat_streamed(demo, scripted):
    for client, expected in [(demo, ANSWER), (scripted, SCRIPTED)]:
        chunks = list(client.openai.chat.completions.create(
            model="any", messages=QUESTION, temperature=0, stream=True,
            stream_options={"include_usage": True}))
        text = "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)
        assert text.strip() == expected, text
        assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices
        assert [it.choices[0].finish_reason for it in chunks if it.choices][-1] == "stop"


@check
def chat_again_is_cached(demo, _):
    ask = lambda: demo.openai.chat.completions.create(model="any", messages=QUESTION, temperature=0)
    ask()
    usage = ask().usage
    assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens <= 64, usage


@check
def chat_choices_seeds_and_logprobs(demo, _):
    ask = lambda: demo.openai.chat.completions.create(
        model="any", messages=QUESTION, n=3, seed=7, temperature=8, logprobs=True, top_logprobs=2, max_tokens=12)
    first, second = ask(), ask()
    texts = [it.message.content for it in first.choices]
    assert texts == [it.message.content for it in second.choices] and len(set(texts)) > 1, texts
    for choice in first.choices:
        listed = choice.logprobs.content
        # A text that ends inside a character ends before it; its token is listed all the same.
        text = "".join(it.token for it in listed)
        assert choice.message.content in (text, text.removesuffix("\ufffd")), (text, choice)
        assert all(len(it.top_logprobs) == 2 and it.logprob <= 0 for it in listed)


@check
def chat_stops_limits_and_continues(demo, scripted):
    ask = lambda **more: scripted.openai.chat.completions.create(model="any", messages=QUESTION, **more).choices[0]
    found = ask(stop=["scripted"])
    assert (found.message.content, found.finish_reason) == ("Hello! This is ", "stop"), found
    found = ask(max_completion_tokens=2)
    assert found.finish_reason == "length" and SCRIPTED.startswith(found.message.content), found
    messages = QUESTION + [{"role": "assistant", "content": "Appends an element to"}]
    found = demo.openai.chat.completions.create(model="any", messages=messages, temperature=0)
    assert found.choices[0].message.content.strip() == "the back of a collection.", found


@check
def chat_errors(demo, _):
    for wrong, field in [({"temperature": -1}, "temperature"), ({"n": 0}, "n"),
                         ({"response_format": {"type": "xml"}}, "response_format")]:
        try:
            demo.openai.chat.completions.create(model="any", messages=QUESTION, **wrong)
        except openai.BadRequestError as error:
            assert field in (error.param or ""), error
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        demo.openai.chat.completions.create(model="any", messages=[{"role": "user", "content": "a " * 100000}])
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
    else:
        raise AssertionError("a prompt that is too long was taken")


@check
def completions(demo, _):
    ask = demo.openai.completions.create
    plain = ask(model="any", prompt="A slice is", max_tokens=8, temperature=0)
    tokens = json.load(post(demo.url + "/tokenize", {"prompt": "A slice is"}))["tokens"]
    by_tokens = ask(model="any", prompt=tokens, max_tokens=8, temperature=0)
    assert plain.choices[0].text == by_tokens.choices[0].text != "", (plain, by_tokens)
    several = ask(model="any", prompt=["A slice is", "Rc is"], max_tokens=4, temperature=0, n=2)
    assert [it.index for it in several.choices] == [0, 1, 2, 3] and len({it.text for it in several.choices}) == 2
    streamed = ask(model="any", prompt="A slice is", max_tokens=8, temperature=0, stream=True)
    assert "".join(it.choices[0].text for it in streamed if it.choices) == plain.choices[0].text


@check
def completions_echo_as_evaluation_harnesses_ask(demo, _):
    text = "A slice is a view into a block of memory."
    found = demo.openai.completions.create(
        model="any", prompt=text, max_tokens=1, echo=True, logprobs=1, temperature=0).choices[0]
    listed = found.logprobs
    assert found.text.startswith(text) and listed.token_logprobs[0] is None, found
    assert "".join(listed.tokens) == found.text and len(listed.tokens) == len(listed.token_logprobs)
    assert [found.text.find(it, at) == at for it, at in zip(listed.tokens, listed.text_offset)].count(False) == 0


@check
def responses(demo, scripted):
    for client, expected in [(demo, ANSWER), (scripted, SCRIPTED)]:
        found = client.openai.responses.create(model="any", input=QUESTION[0]["content"], temperature=0)
        assert found.output_text.strip() == expected and found.status == "completed", found
        assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
        with client.openai.responses.stream(model="any", input=QUESTION, temperature=0) as stream:
            kinds = [it.type for it in stream]
            assert stream.get_final_response().output_text.strip() == expected
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    try:
        demo.openai.responses.create(model="any", input="Why?", previous_response_id="resp_1")
    except openai.BadRequestError as error:
        assert "previous_response_id" in str(error), error
    else:
        raise AssertionError("previous_response_id was taken")


@check
def messages(demo, scripted):
    for client, expected in [(demo, ANSWER), (scripted, SCRIPTED)]:
        found = client.anthropic.messages.create(model="any", max_tokens=100, messages=QUESTION, extra_body=GREEDY)
        assert found.content[0].text.strip() == expected and found.stop_reason == "end_turn", found
        with client.anthropic.messages.stream(
                model="any", max_tokens=100, messages=QUESTION, extra_body=GREEDY) as stream:
            assert "".join(stream.text_stream).strip() == expected
            assert stream.get_final_message().usage.output_tokens == found.usage.output_tokens
    found = scripted.anthropic.messages.create(
        model="any", max_tokens=100, messages=QUESTION, stop_sequences=["scripted"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "scripted"), found
    found = scripted.anthropic.messages.create(model="any", max_tokens=2, messages=QUESTION)
    assert found.stop_reason == "max_tokens", found
    counted = demo.anthropic.messages.count_tokens(model="any", messages=QUESTION).input_tokens
    usage = demo.anthropic.messages.create(model="any", max_tokens=5, messages=QUESTION).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)
    try:
        demo.anthropic.messages.create(model="any", max_tokens=-1, messages=QUESTION)
    except anthropic.BadRequestError as error:
        assert "max_tokens" in str(error), error
    else:
        raise AssertionError("max_tokens -1 was taken")


@check
def a_stream_that_is_left_is_cancelled(demo, _):
    bias = {str(it): -100 for it in range(3)}
    stream = demo.openai.chat.completions.create(
        model="any", messages=QUESTION, stream=True, max_tokens=3000, temperature=1.5, logit_bias=bias)
    next(iter(stream))
    stream.close()
    for _ in range(200):
        if demo.metric("vllm:num_requests_running") == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the answer goes on")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request)


def long(url):
    """Each takes minutes to its first token: none may lose patience."""
    client = Clients(url)
    words = lambda seed: [{"role": "user", "content": f"{seed} " + "word after word " * 4000}]

    def streamed_chat():
        chunks = client.openai.chat.completions.create(model="any", messages=words("a"), stream=True, max_tokens=4)
        return "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)

    def whole_chat():
        found = client.openai.chat.completions.create(model="any", messages=words("b"), max_tokens=4)
        return found.choices[0].message.content

    def streamed_responses():
        with client.openai.responses.stream(model="any", input=words("c"), max_output_tokens=16) as stream:
            return stream.get_final_response().output_text

    def streamed_messages():
        with client.anthropic.messages.stream(model="any", max_tokens=4, messages=words("d")) as stream:
            return "".join(stream.text_stream)

    return [streamed_chat, whole_chat, streamed_responses, streamed_messages]


def main():
    if sys.argv[1] == "--long":
        checks = [(it.__name__, it) for it in long(sys.argv[2])]
    else:
        demo, scripted = Clients(sys.argv[1]), Clients(sys.argv[2])
        checks = [(it.__name__, lambda it=it: it(demo, scripted)) for it in CHECKS + calls.CHECKS]
    with concurrent.futures.ThreadPoolExecutor(len(checks) if sys.argv[1] == "--long" else 1) as pool:
        n_wrong = sum(pool.map(lambda it: is_wrong(*it), checks))
    print(f"{len(checks)} checks, {n_wrong} wrong")
    return n_wrong > 0


def is_wrong(name, run):
    began = time.monotonic()
    try:
        found = run()
    except Exception:
        print(f"WRONG   {name}, {time.monotonic() - began:.1f} s\n{traceback.format_exc()}", flush=True)
        return True
    said = "" if found is None else f": {found!r}"
    print(f"ok      {name}, {time.monotonic() - began:.1f} s{said}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
