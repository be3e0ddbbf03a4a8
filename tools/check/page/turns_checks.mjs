// Branches, and calls of tools.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";

const TOOL = JSON.stringify([{
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" } } },
}]);
const CALL = { id: "call_1", name: "get_weather", arguments: "{\"city\": \"Paris\"}" };

export async function checks(harness) {
  await harness.check("another answer is a version with arrows", async (it) => {
    const { person, page, server } = it;
    await person.askAndWait("Hello");
    server.answer = () => ({ text: "Good day." });
    await person.clickAndWait("Answer again");
    await person.reads("Good day.");
    assert.equal(await page.locator(".answer").count(), 1);
    await page.getByText("2 of 2").waitFor();
    await person.button("Previous version").click();
    await person.reads("Hello.");
    await eventually(() => page.evaluate(() => document.activeElement.ariaLabel), "Next version");
    assert.notEqual(server.asked[0].seed, server.asked[1].seed);
    assert.deepEqual(server.asked[1].messages, [{ role: "user", content: "Hello" }]);
    await page.reload();
    await person.reads("Hello.");
  });

  await harness.check("an edited question is a branch", async ({ person, page, server }) => {
    server.answer = (body) => ({ text: `You said: ${body.messages.at(-1).content}` });
    await person.askAndWait("One");
    await person.askAndWait("Two");
    await page.locator(".question").first().hover();
    await page.locator(".question").first().getByLabel("Edit this message").click();
    await page.getByLabel("Edit your message").fill("Three");
    await page.keyboard.press("Control+Enter");
    await person.reads("You said: Three");
    await person.isDone();
    assert.deepEqual(await person.questions(), ["Three"]);
    await person.button("Previous version").click();
    await eventually(() => person.questions().then(String), "One,Two");
    await person.button("Next version").click();
    await eventually(() => person.questions().then(String), "Three");
  });

  await harness.check("an edit can be given up", async ({ person, page, server }) => {
    await person.askAndWait("One");
    await page.keyboard.press("Control+ArrowUp");
    await page.getByLabel("Edit your message").fill("Other");
    await page.keyboard.press("Escape");
    assert.deepEqual(await person.questions(), ["One"]);
    assert.equal(server.asked.length, 1);
  });

  await harness.check("an edited answer is what the model sees", async (it) => {
    const { person, page, server } = it;
    await person.askAndWait("One");
    await person.button("Edit this answer").click();
    await page.locator(".editor textarea").fill("My words.");
    await person.button("Keep as another version").click();
    await person.reads("My words.");
    await person.askAndWait("Two");
    assert.equal(server.asked.at(-1).messages[1].content, "My words.");
  });

  await harness.check("a tool is called, and its result goes back", async (it) => {
    const { person, page, server } = it;
    await person.setting("Tools, as JSON", TOOL);
    server.answer = (body) => (body.messages.at(-1).role === "tool"
      ? { text: `It is ${body.messages.at(-1).content}.` }
      : { thoughts: "I look.", calls: [CALL] });
    await person.askAndWait("How is the weather in Paris?");
    const card = page.locator(".tool");
    assert.match(await card.innerText(), /get_weather[\s\S]*"city": "Paris"/);
    assert.equal(server.asked[0].tools[0].function.name, "get_weather");
    await person.button("Send result").click();
    await page.getByText("Each call needs a result.").waitFor();
    await page.getByLabel("Result of get_weather").fill("sunny");
    await page.keyboard.press("Control+Enter");
    await person.reads("It is sunny.");
    const sent = server.asked[1].messages;
    const { name, arguments: text } = CALL;
    assert.deepEqual(sent[1].tool_calls[0].function, { name, arguments: text });
    assert.deepEqual(sent[2], { role: "tool", tool_call_id: "call_1", content: "sunny" });
    await page.reload();
    await person.reads("It is sunny.");
    assert.match(await card.innerText(), /Result[\s\S]*sunny/);
    await person.button("Give another result").click();
    await page.getByLabel("Result of get_weather").fill("wet");
    await person.button("Send result").click();
    await person.reads("It is wet.");
    await page.locator(".tools").getByText("2 of 2").waitFor();
    await person.button("Previous version", page.locator(".tools")).click();
    await person.reads("It is sunny.");
  });

  await harness.check("a call that is demanded is demanded once", async (it) => {
    const { person, page, server } = it;
    await person.button("Settings of this conversation").click();
    await page.getByLabel("Tools, as JSON").fill(TOOL);
    await page.getByLabel("Whether the model calls one").selectOption("required");
    await page.keyboard.press("Escape");
    server.answer = () => ({ calls: [CALL] });
    await person.askAndWait("Weather?");
    await page.getByLabel("Result of get_weather").fill("sunny");
    server.answer = () => ({ text: "Sunny." });
    await person.clickAndWait("Send result");
    assert.deepEqual(server.asked.map((body) => body.tool_choice), ["required", undefined]);
  });

  await harness.check("several calls need all results", async ({ person, page, server }) => {
    await person.setting("Tools, as JSON", TOOL);
    const second = { ...CALL, id: "call_2", arguments: "{\"city\": \"Rome\"}" };
    server.answer = (body) => (body.messages.at(-1).role === "tool" ? { text: "Both." }
      : { calls: [CALL, second] });
    await person.askAndWait("Weather?");
    const fields = page.getByLabel("Result of get_weather");
    await fields.nth(0).fill("sunny");
    await person.button("Send results").click();
    assert.equal(await fields.nth(1).evaluate((field) => field === document.activeElement), true);
    await fields.nth(1).fill("rain");
    await person.button("Send results").click();
    await person.reads("Both.");
    assert.deepEqual(server.asked[1].messages.slice(2).map(({ content }) => content),
      ["sunny", "rain"]);
  });
}
