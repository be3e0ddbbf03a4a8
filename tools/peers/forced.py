#!/usr/bin/env python3
"""What tokens without a choice bring: answers with forced tokens in one step and one by one. Standard library only.

    forced.py MOEFLUX MODEL QUESTIONS.json [ROUNDS] [ARGS..]

QUESTIONS.json is crates/moeflux-demo/toolcalls.json: each request is made twice
in turn, as a call that is demanded and as an answer to the schema of its
arguments. A request for log-probabilities gets its forced tokens one by one, as
the logits before each are computed, and any other in one step: answers and
arithmetic are the same, which is checked. Strings become choices of four, so
that a model of random weights ends them. ARGS go to `moeflux serve`.
"""
import json
import re
import statistics
import sys
import urllib.request

import serving

NAMES = {"seconds": "vllm:request_decode_time_seconds_sum", "tokens": "vllm:generation_tokens_total",
         "forced": "moeflux:forced_tokens_total"}


def counts(url):
    text = serving.http_get(url, "/metrics")
    return {name: float(re.search(rf"^{key}\S* (\S+)", text, re.M)[1]) for name, key in NAMES.items()}


def chosen(schema, value):
    """The schema with strings that are one of four words."""
    properties = {}
    for name, found in schema["properties"].items():
        if found.get("type") == "string" and "enum" not in found:
            found = {"enum": [str(value.get(name, "Berlin")), "north wind", "a small note", "src/main.rs"]}
        properties[name] = found
    return {**schema, "properties": properties, "additionalProperties": False}


def bodies(question):
    tools = json.loads(json.dumps(question["tools"]))
    for tool in tools:
        function = tool["function"]
        function["parameters"] = chosen(function["parameters"], question["arguments"])
    schema = next(it["function"]["parameters"] for it in tools if it["function"]["name"] == question["name"])
    common = {"messages": [{"role": "user", "content": question["request"]}], "temperature": 0, "max_tokens": 256,
              "max_thinking_tokens": 0}
    return {
        "calls": {**common, "tools": tools, "tool_choice": "required"},
        "schemas": {**common, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
    }


def ask(url, body):
    before = counts(url)
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request))["choices"][0]
    after = counts(url)
    message = answer["message"]
    said = (message.get("content"), [it["function"] for it in message.get("tool_calls") or []], answer["finish_reason"])
    return said, {name: after[name] - before[name] for name in NAMES}


def main(moeflux, model, questions, rounds="3", *more):
    questions = json.load(open(questions))
    with serving.Server(moeflux, model, *more) as server:
        for kind in ["calls", "schemas"]:
            gains, share, rates = [], None, {True: [], False: []}
            for _ in range(int(rounds)):
                sums = {way: dict.fromkeys(NAMES, 0.0) for way in [True, False]}
                for question in questions:
                    body, said = bodies(question)[kind], {}
                    for way in [True, False]:
                        said[way], found = ask(server.url, body if way else {**body, "logprobs": True})
                        for name, value in found.items():
                            sums[way][name] += value
                    if said[True] != said[False]:
                        raise SystemExit(f"answers differ: {said}")
                for way, found in sums.items():
                    rates[way].append(found["tokens"] / found["seconds"])
                gains.append(rates[True][-1] / rates[False][-1])
                share = sums[True]["forced"] / sums[True]["tokens"], sums[True]["tokens"]
            print(f"{kind}: {share[0]:.1%} of {share[1]:.0f} tokens forced; tokens/s {serving.spread(rates[True])}, "
                  f"one by one {serving.spread(rates[False])}; gain {serving.spread(gains)}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
