"""Compares what lm-eval makes of a server with what moeflux says of the same tokens.

    python3 check.py URL MODEL_DIR MOEFLUX WORK_DIR

lm-eval asks for one token behind each text, and leaves out the last column of what comes back:
where that token ends the answer, it must have a column as well.
"""
import json
import pathlib
import subprocess
import sys
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

# `eval` reads in windows of its own. All else is compared to the last bit: the same tokens have the
# same log-probabilities, and a text's last token may be so likely that it hardly counts.
TOLERANCE = 1e-3
CONTEXT = 1024

QUESTIONS = ["What is a vector?", "What does Vec::push do?", "What is the heap?", "What is a trait?",
             "What is an iterator?", "What does String::len return?"]
TEXTS = [("A vector is", " a contiguous growable array type"), ("The heap", " grows"), ("", "A vector"),
         ("fn main() {", "\n    println!(\"caf\u00e9 \u4e2d\");\n}"), ("A", " closure " * 60)]

failures = []


def check(name, found, expected, tolerance=0.0):
    if isinstance(expected, float):
        is_right = abs(found - expected) <= tolerance
    else:
        is_right = found == expected
    print(f"{'ok     ' if is_right else 'WRONG  '} {name}: {found!r:.60} {'' if is_right else expected!r:.60}")
    if not is_right:
        failures.append(name)


class Server:
    def __init__(self, url):
        self.url = url

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def scores(self, tokens):
        """Each token's log-probability, and whether it is the most likely one: nothing is sampled."""
        found = self.post("/v1/completions", {"prompt": tokens, "echo": True, "logprobs": 1, "max_tokens": 0})
        table = found["choices"][0]["logprobs"]
        assert len(table["token_logprobs"]) == len(tokens), (len(table["token_logprobs"]), len(tokens))
        is_best = [top is not None and logprob == max(top.values())
                   for logprob, top in zip(table["token_logprobs"], table["top_logprobs"])]
        return table["token_logprobs"], is_best

    def next_ends(self, tokens):
        """Whether the answer ends behind these; with the columns of what lm-eval asks for."""
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        choice = self.post("/v1/completions", body)["choices"][0]
        return choice["finish_reason"] == "stop", len(choice["logprobs"]["token_logprobs"])

    def complete(self, prompt, **more):
        body = {"prompt": prompt, "temperature": 0, **more}
        return self.post("/v1/completions", body)["choices"][0]["text"]


def model(url, folder, batch_size=1, num_concurrent=1):
    return LocalCompletionsAPI(base_url=url + "/v1/completions", model="demo", tokenizer=folder,
                               tokenizer_backend="huggingface", batch_size=batch_size, max_length=CONTEXT,
                               num_concurrent=num_concurrent, max_retries=1)


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=it, idx=0) for it in arguments]


def loglikelihoods(lm, server, name):
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [template.format(question) for question in QUESTIONS]
    # What the model says until it ends its answer: the next token is the one that ends it.
    pairs = TEXTS + [(prompt, server.complete(prompt, max_tokens=200)) for prompt in prompts]
    pairs = [(context, text) for context, text in pairs if text]
    found = lm.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    n_ended = 0
    for (context, text), (logprob, is_greedy) in zip(pairs, found):
        if context:
            before, tokens = lm._encode_pair(context, text)
        else:
            before, tokens = [lm.prefix_token_id], lm.tok_encode(text)
        logprobs, is_best = server.scores(before + tokens)
        has_ended, n_columns = server.next_ends(before + tokens)
        n_ended += has_ended
        label = f"{name} loglikelihood of {text[:20]!r}"
        check(label, logprob, sum(logprobs[len(before):]))
        check(f"{label}, columns", n_columns, len(before + tokens) + 1)
        check(f"{label}, greedy", is_greedy, all(is_best[len(before):]))
    check(f"{name}: texts behind which the answer ends", n_ended > 0, True)


def rolling(lm, server, name):
    texts = ["A vector is a contiguous growable array.", "The heap. " * 40, "fn main() { let x = 1; }\n" * 120]
    found = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in texts]),
                                     disable_tqdm=True)
    for text, logprob in zip(texts, found):
        windows = get_rolling_token_windows(token_list=lm.tok_encode(text), prefix_token=lm.prefix_token_id,
                                            max_seq_len=lm.max_length - 1, context_len=1)
        expected, n_windows = 0.0, 0
        for before, tokens in map(make_disjoint_window, windows):
            expected += sum(server.scores(before + tokens)[0][len(before):])
            n_windows += 1
        # The client adds the windows up in its own order.
        check(f"{name} rolling over {n_windows} windows", logprob, expected, 1e-9 * abs(expected))


def generations(lm, server, name):
    requests = [(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", stop)
                for question in QUESTIONS for stop in (["\n"], [" a", "."])]
    asked = [(prompt, {"until": stop, "max_gen_toks": 40}) for prompt, stop in requests]
    found = lm.generate_until(instances("generate_until", asked), disable_tqdm=True)
    for (prompt, stop), text in zip(requests, found):
        # The client adds the tokenizer's end token to the strings.
        expected = server.complete(lm.tok_encode(prompt), max_tokens=40, stop=stop)
        check(f"{name} generate_until {stop}", text, expected)


def another_way(server, lm, program, work):
    """What `eval` says, which reads a text without a server."""
    text = "A vector is a contiguous growable array type. The heap grows."
    (work / "text.txt").write_text(text)
    subprocess.run([program, "eval", "--file", work / "text.txt", "--logprobs", work / "logprobs.jsonl"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (work / "logprobs.jsonl").read_text().splitlines()]
    tokens = [line["token"] for line in lines]
    of_eval = sum(line["logprob"] or 0.0 for line in lines)
    logprobs, _ = server.scores(tokens)
    check("the server and `eval`", sum(logprobs[1:]), of_eval, TOLERANCE)
    context, rest = lm.decode_batch([tokens[:3]])[0], lm.decode_batch([tokens[3:]])[0]
    found = lm.loglikelihood(instances("loglikelihood", [(context, rest)]), disable_tqdm=True)
    check("lm-eval and `eval`", found[0][0], sum(line["logprob"] for line in lines[3:]), TOLERANCE)


def main():
    url, folder, program, work = sys.argv[1:]
    server = Server(url)
    for name, lm in [("one by one", model(url, folder)), ("batches", model(url, folder, batch_size=4)),
                     ("at a time", model(url, folder, num_concurrent=4))]:
        loglikelihoods(lm, server, name)
        rolling(lm, server, name)
        generations(lm, server, name)
    another_way(server, model(url, folder), program, pathlib.Path(work))
    print(f"{len(failures)} wrong")
    sys.exit(bool(failures))


main()
