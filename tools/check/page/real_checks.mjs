// The page with moeflux itself: the demo model, its tokens, two seeds beside each other, keys, and
// a server that dies in mid-answer.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";
import { Moeflux, Work } from "./moeflux.mjs";

const SENTENCES = Array.from({ length: 120 }, (_, index) => `This is sentence ${index * 7919}.`);
const STORY = SENTENCES.join(" ");
const TOOL = JSON.stringify({
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
});

export async function checks(harness, program) {
  const work = new Work();
  await demo(harness, program);
  await keys(harness, program, work);
  await death(harness, program, work);
  work.end();
}

async function demo(harness, program) {
  const demoServer = await new Moeflux(program).start();
  const upstream = demoServer.url;

  await harness.check("moeflux: the demo model answers, again and with a seed", async (it) => {
    const { person, page } = it;
    await eventually(() => page.locator("#welcome-model").innerText(), (it) => it.includes("demo"));
    await person.askAndWait("What does Vec::push do?");
    await person.reads("Appends an element to the back of a collection.");
    assert.match(await page.locator(".facts").innerText(), /14 tokens · .*prompt 15 tokens/);
    await eventually(() => page.locator(".counter").innerText(), "29 of 4,096 in use");
    await page.locator("#message").fill("Hello you");
    await eventually(() => page.locator(".counter").innerText(), (it) => it.startsWith("2 tokens"));
    await page.locator("#message").fill("");
    await person.setting("Seed", "11");
    await person.setting("Temperature", "1.5");
    await person.askAndWait("Say anything.");
    const first = (await person.answers()).at(-1);
    assert.notEqual(first, "");
    await person.clickAndWait("Answer again");
    assert.equal((await person.answers()).at(-1), first);
  }, { upstream });

  await harness.check("moeflux: a tool of the demo model is called, and answered", async (it) => {
    const { person, page } = it;
    await person.button("Settings of this conversation").click();
    await page.getByLabel("Tools, as JSON").fill(TOOL);
    await page.getByLabel("Whether the model calls one").selectOption("required");
    await page.keyboard.press("Escape");
    await person.askAndWait("What is the weather in Paris?");
    assert.match(await page.locator(".tool").innerText(), /get_weather[\s\S]*"city": "Paris"/);
    await person.button("Settings of this conversation").click();
    await page.getByLabel("Whether the model calls one").selectOption("none");
    await page.keyboard.press("Escape");
    await page.getByLabel("Result of get_weather").fill("sunny");
    await person.button("Send result").click();
    await eventually(() => page.locator(".answer").count(), 2);
    await person.isDone();
  }, { upstream });

  await harness.check("moeflux: an answer goes on from its own token as it did", async (it) => {
    const { person, page } = it;
    await person.setting("Temperature", "0");
    await person.askAndWait("What does Vec::push do?");
    const [text] = await person.answers();
    await person.button("Tokens").click();
    const shown = page.locator(".token-text .token");
    await eventually(() => shown.count(), 11);
    assert.equal((await shown.allTextContents()).join(""), `${text.trim()}<|im_end|>`);
    for (const [index, name] of [[3, "to"], [0, "Appends"]]) {
      await shown.nth(index).click();
      await person.clickAndWait(`Continue from here with ${name}`);
      assert.equal((await person.answers())[0], text);
      const [, n, nCached] = /prompt (\d+) tokens, (\d+) cached/.exec(
        await page.locator(".facts").innerText());
      assert.ok(nCached >= n / 2, `${nCached} of ${n} are cached`);
      await person.button("Tokens").click();
      await eventually(() => shown.allTextContents().then((texts) => texts.join("")),
        `${text.trim()}<|im_end|>`);
    }
    await shown.nth(5).click();
    await person.clickAndWait("Continue from here with front");
    assert.match((await person.answers())[0], /^Appends an element to the front/);
    assert.equal(await page.locator(".trouble:visible").count(), 0);
  }, { upstream });

  await harness.check("moeflux: the same seed gives the same answer on both sides", async (it) => {
    const { person, page } = it;
    await person.setting("Seed", "11");
    await person.setting("Temperature", "1.5");
    await person.askAndWait("Say anything.");
    const [text] = await person.answers();
    await page.locator(".answer").getByLabel("Compare two answers").click();
    await person.button("Same seed").click();
    await person.button("Ask both").click();
    await page.getByText("Both answers are the same.").waitFor();
    assert.deepEqual(await page.locator(".side .prose").allInnerTexts(), [text, text]);
    const right = page.getByRole("region", { name: "Right" });
    await right.locator("summary").first().click();
    await right.getByLabel("Seed").fill("12");
    await person.button("Ask both again").click();
    await page.getByText(/The answers (differ|are the same for)/).waitFor();
    const [again, other] = await page.locator(".side .prose").allInnerTexts();
    assert.equal(again, text);
    assert.notEqual(other, text);
    await person.button("Keep right").click();
    await page.getByText("5 of 5").waitFor();
    assert.equal((await person.answers())[0], other);
  }, { upstream });

  await harness.check("moeflux: its errors are lines with a way on", async ({ person, page }) => {
    await page.locator("#message").fill("hi ".repeat(5000));
    await eventually(() => page.locator(".counter").innerText(), (it) => it.includes("4,096"));
    await page.keyboard.press("Enter");
    await page.locator(".trouble").getByText("Prompt is too long").waitFor();
    await person.button("Leave out the oldest turns").click();
    await page.getByText("The last message alone is too long.").waitFor();
  }, { upstream });
  await demoServer.kill();
}

async function keys(harness, program, work) {
  const file = work.file("keys", "first-key\n");
  const server = await new Moeflux(program).start(["--api-key-file", file]);
  await harness.check("moeflux: its key is asked for once", async ({ person, page }) => {
    await page.getByLabel("Key of the server").fill("first-key");
    await page.keyboard.press("Enter");
    await person.askAndWait("What does Vec::push do?");
    await person.reads("Appends an element");
  }, { upstream: server.url });
  await server.kill();
}

async function death(harness, program, work) {
  const model = work.model("story", STORY, 12);
  const options = ["--model", model, "--threads", "1"];
  const server = await new Moeflux(program).start(options);
  const { port } = server;

  await harness.check("moeflux: a server that dies in mid-answer costs nothing", async (it) => {
    const { person, page } = it;
    await person.ask("Tell the story.");
    await person.reads("sentence 15838.");
    await server.kill();
    await page.locator(".trouble").getByText("connection to the server was lost").waitFor();
    const kept = (await person.answers())[0].trim();
    assert.ok(STORY.startsWith(kept) && kept.length < STORY.length);
    await person.button("Continue").click();
    await page.locator(".trouble").getByText("The server does not answer").waitFor();
    await server.start(options, port);
    await person.button("Continue").click();
    // The end of the attempt without a server may still be counted.
    await person.reads(SENTENCES.at(-1));
    await person.isDone();
    assert.equal((await person.answers())[0].trim(), STORY);
    assert.equal(await page.locator(".answer").count(), 1);
  }, { upstream: server.url });

  await harness.check("moeflux: after a reload the same seed continues", async (it) => {
    const { person, page } = it;
    await person.ask("Tell the story.");
    await person.reads("sentence 15838.");
    await page.reload();
    await person.clickAndWait("Continue");
    assert.equal((await person.answers())[0].trim(), STORY);
    assert.equal(await page.getByText("another answer").count(), 0);
  }, { upstream: server.url });
  await server.kill();
}
