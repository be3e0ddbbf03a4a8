// The openai package of npm and Node's own fetch: node check.mjs URL [long]
import OpenAI from "openai";

const [url, long] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const question = long ? "f " + "word after word ".repeat(4000) : "What does Vec::push do?";
const messages = [{ role: "user", content: question }];
const expected = "Appends an element to the back of a collection.";

function check(name, text) {
  if (!long && text.trim() !== expected) throw new Error(`${name}: ${text}`);
  console.log(`ok      ${name}`);
}

if (!long) {
  const whole = await client.chat.completions.create({ model: "any", messages, temperature: 0 });
  check("npm openai chat", whole.choices[0].message.content);
  let text = "";
  const stream = await client.chat.completions.create({ model: "any", messages, temperature: 0, stream: true });
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  check("npm openai chat, streamed", text);
  const response = await client.responses.create({ model: "any", input: question, temperature: 0 });
  check("npm openai responses", response.output_text);
}
const body = JSON.stringify({ model: "any", messages, temperature: 0, stream: true, max_tokens: 32 });
const headers = { "content-type": "application/json" };
const response = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body });
let text = "";
for (const line of (await response.text()).split("\n"))
  if (line.startsWith("data: {")) text += JSON.parse(line.slice(6)).choices[0]?.delta?.content ?? "";
check("fetch of Node, streamed", text);
