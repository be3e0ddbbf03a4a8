// The loop of tools in the openai package of npm: node loops.mjs URL < SCENES
// SCENES is what scenes.py calls `spoken`. Each question is a conversation of its own.
import { readFileSync } from "node:fs";
import { deepStrictEqual } from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const { tools, asks } = JSON.parse(readFileSync(0, "utf8"));

for (const stream of [false, true])
  for (const { ask, calls, results, answer } of asks) {
    const called = [];
    const run = (name) => (text) => {
      called.push([name, text]);
      return results[called.length - 1];
    };
    const runner = client.chat.completions.runTools({
      model: "any",
      stream,
      messages: [{ role: "user", content: ask }],
      tools: tools.map((it) => ({ type: "function", function: { ...it, function: run(it.name) } })),
    });
    const found = [await runner.finalContent(), called];
    deepStrictEqual(found, [answer, calls], `${ask}, stream: ${stream}`);
  }
