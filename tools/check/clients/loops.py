"""Calls of tools with their results and the answers to these, through the clients of others.

    python3 loops.py URL FORMAT TOOLS

URL serves the scripted model of scenes.py for FORMAT, TOOLS is the folder with node_modules. A
client asks the questions of the scenes. What it gets must be the script to the letter. The model
compares what comes back to it: if a prompt has another history, its answer differs.
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anthropic
import openai

import check
import scenes
import script_model

DELTAS = ["response.output_text.delta", "response.function_call_arguments.delta"]
PARTS = lambda kind, text: [{"type": kind, "text": text}]


class Chat:
    """A conversation through Chat Completions; `say` and `give` return text and calls."""
    reasons = ("tool_calls", "stop")

    def __init__(self, url):
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        tools = [{"type": "function", "function": it} for it in scenes.TOOLS]
        self.options = {"model": "any", "tools": tools}
        self.history = []
        self.ids = []
        self.reason = None

    def say(self, text):
        self.history.append({"role": "user", "content": text})
        return self.answer()

    def give(self, results):
        ids = self.ids[-len(results):]
        self.history += [self.result(id, text) for id, text in zip(ids, results)]
        return self.answer()

    def result(self, id, text):
        return {"role": "tool", "tool_call_id": id, "content": text}

    def answer(self):
        message = self.message()
        calls = message.tool_calls or []
        assert all(it.type == "function" for it in calls), calls
        # Beside calls without text stands no empty text.
        assert message.content is None or message.content, message
        self.ids += [it.id for it in calls]
        self.history.append(message)
        return message.content or "", [(it.function.name, it.function.arguments) for it in calls]

    def message(self):
        ask = self.client.chat.completions.create
        choice = ask(messages=self.history, **self.options).choices[0]
        self.reason = choice.finish_reason
        return choice.message


class ChatStreamed(Chat):
    """Through the package's own stream, with results as parts."""

    def result(self, id, text):
        return {"role": "tool", "tool_call_id": id, "content": PARTS("text", text)}

    def message(self):
        done = []
        with self.client.chat.completions.stream(messages=self.history, **self.options) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.done":
                    done.append((event.index, event.name, event.arguments))
            choice = stream.get_final_completion().choices[0]
        self.reason = choice.finish_reason
        calls = [it.function for it in choice.message.tool_calls or []]
        assert done == [(idx, it.name, it.arguments) for idx, it in enumerate(calls)], done
        # An empty text begins every stream, because its contents are not known yet.
        choice.message.content = choice.message.content or None
        return choice.message


class ChatDeltas(Chat):
    """Through the chunks themselves, for clients that put them together on their own."""

    def message(self):
        text, calls, reasons = [], [], []
        for chunk in self.client.chat.completions.create(
                messages=self.history, stream=True, **self.options):
            delta = chunk.choices[0].delta
            text.append(delta.content or "")
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
            for it in delta.tool_calls or []:
                is_new = it.index == len(calls)
                assert is_new or it.index == len(calls) - 1, chunk
                # Clients add up what comes twice.
                assert is_new == (it.id is not None) == (it.function.name is not None), chunk
                if is_new:
                    calls.append({"id": it.id, "type": it.type, "function": {
                        "name": it.function.name, "arguments": ""}})
                calls[-1]["function"]["arguments"] += it.function.arguments or ""
        assert len(reasons) == 1, reasons
        self.reason = reasons[0]
        message = {"role": "assistant", "content": "".join(text) or None}
        message["tool_calls"] = calls or None
        return openai.types.chat.ChatCompletionMessage.model_validate(message)


class Responses(Chat):
    """A conversation through Responses, whose items go back as they came."""
    reasons = ("completed", "completed")

    def __init__(self, url):
        super().__init__(url)
        self.options["tools"] = [{"type": "function", **it} for it in scenes.TOOLS]

    def result(self, id, text):
        return {"type": "function_call_output", "call_id": id, "output": text}

    def answer(self):
        response = self.response()
        self.reason = response.status
        calls = [it for it in response.output if it.type == "function_call"]
        assert all(it.status == "completed" for it in response.output), response
        # Text, if there is any, comes before calls.
        kinds = [it.type for it in response.output]
        n_texts = 1 if response.output_text else 0
        assert kinds == ["message"] * n_texts + ["function_call"] * len(calls), kinds
        self.ids += [it.call_id for it in calls]
        self.history += response.output
        return response.output_text, [(it.name, it.arguments) for it in calls]

    def response(self):
        return self.client.responses.create(input=self.history, **self.options)


class ResponsesStreamed(Responses):
    """Through the events; they add up to the final response. Results are parts."""

    def result(self, id, text):
        output = PARTS("input_text", text)
        return {"type": "function_call_output", "call_id": id, "output": output}

    def response(self):
        added, deltas, done, items = {}, {}, {}, {}
        with self.client.responses.stream(input=self.history, **self.options) as stream:
            for event in stream:
                if event.type in DELTAS:
                    deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
                elif event.type == "response.output_item.added":
                    added[event.output_index] = event.item
                elif event.type == "response.output_item.done":
                    items[event.output_index] = event.item
                elif event.type == "response.output_text.done":
                    done[event.output_index] = event.text
                elif event.type == "response.function_call_arguments.done":
                    done[event.output_index] = event.arguments
            response = stream.get_final_response()
        assert list(added) == list(items) == list(range(len(response.output))), (added, items)
        for idx, item in enumerate(response.output):
            is_call = item.type == "function_call"
            whole = item.arguments if is_call else item.content[0].text
            assert deltas[idx] == done[idx] == whole, (deltas[idx], done[idx], item)
            assert added[idx].id == items[idx].id == item.id, (added[idx], items[idx], item)
            if is_call:
                begun = added[idx]
                assert (begun.name, begun.call_id) == (item.name, item.call_id), (begun, item)
                assert items[idx].arguments == whole, items[idx]
        return response


class Messages(Chat):
    """A conversation through Messages."""
    reasons = ("tool_use", "end_turn")

    def __init__(self, url):
        super().__init__(url)
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        tools = [{"name": it["name"], "description": it["description"],
                  "input_schema": it["parameters"]} for it in scenes.TOOLS]
        self.options = {"model": "any", "max_tokens": 500, "tools": tools}

    def give(self, results):
        blocks = [self.result(id, text) for id, text in zip(self.ids[-len(results):], results)]
        self.history.append({"role": "user", "content": blocks})
        return self.answer()

    def result(self, id, text):
        return {"type": "tool_result", "tool_use_id": id, "content": text}

    def answer(self):
        message = self.message()
        self.reason = message.stop_reason
        texts = [it.text for it in message.content if it.type == "text"]
        calls = [it for it in message.content if it.type == "tool_use"]
        kinds = [it.type for it in message.content]
        assert len(texts) < 2 and kinds == ["text"] * len(texts) + ["tool_use"] * len(calls), kinds
        self.ids += [it.id for it in calls]
        self.history.append({"role": "assistant", "content": message.content})
        return "".join(texts), [(it.name, scenes.written(it.input)) for it in calls]

    def message(self):
        return self.client.messages.create(messages=self.history, **self.options)


class MessagesStreamed(Messages):
    """Through the events; they add up to the final message. Results are blocks."""

    def result(self, id, text):
        return {"type": "tool_result", "tool_use_id": id, "content": PARTS("text", text)}

    def message(self):
        begun, deltas, ended = [], [], []
        with self.client.messages.stream(messages=self.history, **self.options) as stream:
            for event in stream:
                if event.type == "content_block_start":
                    assert event.index == len(begun) == len(ended), event
                    begun.append(event.content_block.model_copy())
                    deltas.append("")
                elif event.type == "content_block_delta":
                    is_call = event.delta.type == "input_json_delta"
                    deltas[event.index] += event.delta.partial_json if is_call else event.delta.text
                elif event.type == "content_block_stop":
                    ended.append(event.index)
            message = stream.get_final_message()
        assert ended == list(range(len(message.content))), ended
        for first, text, block in zip(begun, deltas, message.content):
            if block.type == "tool_use":
                assert (first.id, first.name, first.input) == (block.id, block.name, {}), first
                assert text == scenes.written(block.input), text
            else:
                assert text == block.text, (text, block)
        return message


def loop(url, dialect):
    """All scenes in one conversation."""
    talk = dialect(url)
    for ask, turns in scenes.SCENES.items():
        answer = talk.say(ask)
        for place, turn in enumerate(turns):
            expected = turn.expected()
            where = f"{ask} Answer {place}"
            assert answer == expected, f"{where}: got {answer}, not {expected}"
            reason = talk.reasons[0 if turn.calls else 1]
            assert talk.reason == reason, f"{where}: {talk.reason}, not {reason}"
            if turn.calls:
                answer = talk.give(turn.results)
    n_calls = sum(len(turn.calls) for turns in scenes.SCENES.values() for turn in turns)
    assert all(talk.ids) and len(set(talk.ids)) == n_calls, talk.ids
    return f"{n_calls} calls"


def altered_result(url):
    """That the model notices what differs, or the other checks would say little."""
    talk = Chat(url)
    ask, (turn, _) = next(iter(scenes.SCENES.items()))
    talk.say(ask)
    answer = talk.give([turn.results[0].replace("21", "22")])
    assert answer == (script_model.LOST, []), answer


def all_at_once(url):
    """Conversations next to each other: more than the server has sessions."""
    with concurrent.futures.ThreadPoolExecutor(len(DIALECTS)) as pool:
        return list(pool.map(lambda it: loop(url, it), DIALECTS))[0] + " each"


def tool_runner(url):
    """The loop of the anthropic package itself, streamed and not."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def tool(spec, results, called):
        def run(**arguments):
            called.append((spec["name"], scenes.written(arguments)))
            return results[len(called) - 1]
        about = {"name": spec["name"], "description": spec["description"]}
        return anthropic.beta_tool(run, input_schema=spec["parameters"], **about)

    for is_streamed in (False, True):
        for it in scenes.spoken()["asks"]:
            called = []
            runner = client.beta.messages.tool_runner(
                model="any", max_tokens=500, messages=[{"role": "user", "content": it["ask"]}],
                tools=[tool(spec, it["results"], called) for spec in scenes.TOOLS],
                stream=is_streamed)
            last = runner.until_done()
            text = "".join(block.text for block in last.content if block.type == "text")
            found = (text, called)
            assert found == (it["answer"], it["calls"]), f"{it['ask']} {is_streamed=} {found}"


def run_tools_of_npm(url, tools):
    """The loop of the openai package for Node itself, streamed and not."""
    ran = subprocess.run(["node", Path(tools, "loops.mjs"), url], text=True, capture_output=True,
                         input=json.dumps(scenes.spoken()), timeout=120)
    assert ran.returncode == 0, ran.stderr


def codex(url, tools):
    """Codex runs a command that the model calls for, in a scratch folder, and prints the answer."""
    with tempfile.TemporaryDirectory() as work:
        home, folder = Path(work, "home"), Path(work, "folder")
        home.mkdir()
        folder.mkdir()
        (home / "config.toml").write_text(
            'model = "scripted"\nmodel_provider = "moeflux"\n[model_providers.moeflux]\n'
            f'name = "moeflux"\nbase_url = "{url}/v1"\nwire_api = "responses"\n')
        # The command is known, and a container has no means for a sandbox of Codex's own.
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]

        def says(arguments, answer):
            ran = subprocess.run(
                [Path(tools, "node_modules/.bin/codex"), "exec", *arguments], cwd=folder, text=True,
                env=dict(os.environ, CODEX_HOME=str(home)), stdin=subprocess.DEVNULL,
                capture_output=True, timeout=300)
            told = f"status {ran.returncode}, {ran.stdout!r}\n{ran.stderr[-4000:]}"
            assert ran.returncode == 0 and ran.stdout.strip() == answer, told

        says([*options, scenes.CODEX_ASK], scenes.CODEX_ANSWER)
        found = {it.name: it.read_text() for it in folder.iterdir()}
        assert found == dict([scenes.CODEX_FILE]), found
        # The first question with its call is then a part of the prompt.
        says(["resume", "--last", *options, scenes.CODEX_ASK_AGAIN], scenes.CODEX_ANSWER_AGAIN)


DIALECTS = [
    Chat, ChatStreamed, ChatDeltas, Responses, ResponsesStreamed, Messages, MessagesStreamed]


def main():
    url, format, tools = sys.argv[1:]
    checks = [(it.__name__, lambda it=it: loop(url, it)) for it in DIALECTS]
    more = [all_at_once, altered_result]
    with_tools = []
    # These begin a conversation for each question, but Kimi K2 counts the calls of all.
    if format != "kimi_k2":
        more.append(tool_runner)
        with_tools.append(run_tools_of_npm)
    # A long prompt in the other formats would show nothing new.
    if format in ("hermes", "qwen_xml"):
        with_tools.append(codex)
    checks += [(it.__name__, lambda it=it: it(url)) for it in more]
    checks += [(it.__name__, lambda it=it: it(url, tools)) for it in with_tools]
    n_wrong = sum(check.is_wrong(f"{format}: {name}", run) for name, run in checks)
    print(f"{len(checks)} checks, {n_wrong} wrong")
    return n_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
