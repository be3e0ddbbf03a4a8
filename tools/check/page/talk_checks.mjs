// Questions and answers: the start, streaming, stop, waiting, settings, errors and ways on.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";

const STORY = "Once upon a time there was a page. ".repeat(40);

export async function checks(harness) {
  await harness.check("the start shows the model and three questions", async ({ person, page }) => {
    await eventually(() => page.locator("#welcome-model").innerText(), "scripted-model");
    await eventually(() => page.locator("#about").innerText(), (it) => it.includes("8,192 tokens"));
    assert.equal(await page.locator(".example").count(), 3);
    assert.equal(await page.evaluate(() => document.activeElement.id), "message");
    await page.locator(".example").first().click();
    await person.reads("Hello.");
    assert.match((await person.questions())[0], /hash table/);
    assert.match(await page.title(), /hash table/);
  });

  await harness.check("an answer streams, and its counts are below it", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 5 });
    await person.ask("Tell a story");
    await person.reads("Once upon");
    assert.equal(await page.locator(".answer").getAttribute("aria-busy"), "true");
    await eventually(() => page.locator(".status").innerText(), (it) => /tokens\/s/.test(it));
    server.answer = () => ({ text: "And so on." });
    await person.isDone();
    const facts = await page.locator(".facts").innerText();
    assert.match(facts, /280 tokens · \d+ tokens\/s · first after .* · prompt 12 tokens/);
    await eventually(() => page.locator("#announcements").innerText(), (it) =>
      it.includes("complete: 280 tokens"));
    assert.equal(server.asked[0].stream, true);
    assert.ok(Number.isInteger(server.asked[0].seed));
  });

  await harness.check("stop keeps what came, and continue goes on", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 8 });
    await person.ask("Tell a story");
    await person.reads("there was");
    await person.button("Stop the answer").click();
    await person.isDone();
    const kept = (await person.answers())[0];
    assert.ok(kept.length < STORY.length);
    server.answer = () => ({ text: STORY });
    await person.clickAndWait("Continue");
    assert.equal((await person.answers())[0].trim(), STORY.trim());
    assert.equal(server.asked[0].seed, server.asked[1].seed);
    assert.deepEqual(server.asked[0].messages, server.asked[1].messages);
    assert.equal(await page.locator(".trouble:visible").count(), 0);
  });

  await harness.check("escape stops an answer before it began", async (it) => {
    const { person, page, server } = it;
    const progress = [{ total: 10, cache: 0, processed: 1, time_ms: 10 }];
    server.answer = () => ({ text: "Late.", progress, waitMs: 5000 });
    await person.ask("Hello");
    await page.locator(".status progress").waitFor();
    await page.keyboard.press("Escape");
    await page.getByText("Stopped before it began.").waitFor();
    server.answer = () => ({ text: "Now." });
    await person.button("Try again").click();
    await person.reads("Now.");
  });

  await harness.check("a wait says how far the prompt is", async ({ person, page, server }) => {
    const at = (processed, more) => ({ total: 4000, cache: 0, processed, time_ms: 1000, ...more });
    const progress = [at(1000), at(2000, { seconds_left: 12 }), at(3000, { seconds_left: 4 })];
    server.answer = () => ({ text: "Read.", progress, waitMs: 700 });
    await person.ask("Read this");
    const status = () => page.locator(".status").innerText();
    await eventually(status, (it) => it.includes("1,000 of 4,000 tokens · about 3 s left"));
    await eventually(status, (it) => it.includes("2,000 of 4,000 tokens · about 15 s left"));
    assert.equal(await page.locator(".status progress").evaluate((bar) => bar.value), 0.5);
    await person.isDone();
  });

  await harness.check("thoughts are folded with their length", async ({ person, page, server }) => {
    server.answer = () => ({ thoughts: "I *think* so. ".repeat(20), text: "Yes.", pauseMs: 10 });
    await person.ask("Is it so?");
    await eventually(() => page.locator(".thoughts summary").innerText(), (it) =>
      /Thinking, [\d.]+ s/.test(it));
    assert.equal(await page.locator(".thoughts .prose:visible").count(), 0);
    await page.locator(".thoughts summary").click();
    await eventually(() => page.locator(".thoughts em").count(), (n) => n > 0);
    await person.isDone();
    const title = await page.locator(".thoughts summary").innerText();
    assert.match(title, /Thoughts · 56 tokens, [\d.]+ s/);
    await person.askAndWait("And now?");
    const sent = server.asked[1].messages[1];
    assert.equal(sent.content, "Yes.");
    assert.match(sent.reasoning_content, /I \*think\* so/);
  });

  await harness.check("settings are shown, checked and sent", async ({ person, page, server }) => {
    await person.button("Settings of this conversation").click();
    const temperature = page.getByLabel("Temperature");
    assert.equal(await temperature.getAttribute("placeholder"), "0.6");
    assert.equal(await page.getByLabel("Top p").getAttribute("placeholder"), "the model's");
    await temperature.fill("hot");
    await page.getByText("“hot” is not a number").waitFor();
    assert.equal(await temperature.getAttribute("aria-invalid"), "true");
    await temperature.fill("0.3");
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByLabel("Thoughts before an answer").selectOption("off");
    await page.getByLabel("JSON schema").fill("{\"type\": \"object\"}");
    await page.getByLabel("Repeat penalty").fill("1.1");
    await person.button("Use for new conversations").click();
    await person.button("Close").click();
    await person.askAndWait("Hello");
    const [body] = server.asked;
    assert.equal(body.temperature, 0.3);
    assert.equal(body.repetition_penalty, 1.1);
    assert.deepEqual(body.chat_template_kwargs, { enable_thinking: false });
    assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
    assert.equal(body.response_format.type, "json_schema");
    await page.reload();
    await person.button("New conversation").click();
    await person.askAndWait("Again");
    assert.equal(server.asked[1].temperature, 0.3);
  });

  await harness.check("a mistake in the settings is shown before sending", async (it) => {
    const { person, page, server } = it;
    await person.setting("Tools, as JSON", "[{");
    await person.ask("Hello");
    await page.getByText("not valid JSON").waitFor();
    assert.equal(server.asked.length, 0);
    assert.equal(await page.locator("#message").inputValue(), "Hello");
  });

  await harness.check("a key is asked for once, and kept out of sight", async (it) => {
    const { person, page, server, url } = it;
    await page.getByLabel("Key of the server").fill("wrong");
    await page.keyboard.press("Enter");
    await page.getByText("The server refused this key").waitFor();
    await page.getByLabel("Key of the server").fill("secret-key");
    await page.keyboard.press("Enter");
    await eventually(() => page.locator("#welcome-model").innerText(), "scripted-model");
    await person.askAndWait("Hello");
    assert.equal(new URL(page.url()).origin, new URL(url).origin);
    assert.ok(!page.url().includes("secret"));
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("secret")), false);
    await page.reload();
    await person.askAndWait("Still?");
    assert.equal(await page.locator("dialog").count(), 0);
  }, { prepare: (server) => { server.key = "secret-key"; } });

  await harness.check("a model that is being loaded is waited for", async (it) => {
    const { person, page, server } = it;
    server.health = "loading";
    await person.ask("Hello");
    await page.getByText("The server is loading the model").waitFor();
    server.health = "ok";
    await person.reads("Hello.");
    const error = { status: 503, message: "no memory within 30 s" };
    server.answer = () => ({ error });
    await person.ask("Again");
    await page.getByText("The server is busy. Trying again").waitFor();
    server.answer = () => ({ text: "Room now." });
    await person.reads("Room now.");
  });

  await harness.check("errors are one line with a way on", async ({ person, page, server }) => {
    const error = { status: 400, message: "`top_k`: expected a whole number" };
    server.answer = () => ({ error });
    await person.ask("Hello");
    await page.locator(".trouble").getByText(error.message).waitFor();
    await person.button("Edit the message").click();
    await page.getByLabel("Edit your message").fill("Hello again");
    server.answer = () => ({ text: "Hello." });
    await person.button("Send").click();
    await person.reads("Hello.");
    assert.deepEqual(await person.questions(), ["Hello again"]);
  });

  await harness.check("a conversation that is too long leaves out its oldest turns", async (it) => {
    const { person, page, server } = it;
    server.props.max_model_len = 400;
    for (let turn = 0; turn < 4; turn += 1) {
      await person.askAndWait(`${turn} ${"word ".repeat(60)}`);
    }
    const error = { status: 400, message: "prompt is too long", code: "context_length_exceeded" };
    server.answer = (body) => (body.messages.length > 7 ? { error } : { text: "It fits." });
    await person.ask("The last one");
    await person.button("Leave out the oldest turns").click();
    await person.reads("It fits.");
    const { messages } = server.asked.at(-1);
    assert.equal(messages.at(-1).content, "The last one");
    assert.ok(messages.length > 1, "it keeps what fits");
    await page.getByText("The model does not get the turns above.").waitFor();
    await person.button("Include them").click();
    await eventually(() => page.locator(".cut-line").count(), 0);
  });

  await harness.check("a connection that ends keeps its part", async ({ person, page, server }) => {
    server.answer = () => ({ text: STORY, cutAfter: 20, pauseMs: 3 });
    await person.ask("Tell a story");
    await page.locator(".trouble").getByText(/connection .*(lost|ended)/).waitFor();
    server.isDown = true;
    server.cut();
    await person.button("Continue").click();
    await page.locator(".trouble").getByText("The server does not answer").waitFor();
    server.isDown = false;
    server.answer = () => ({ text: STORY });
    await person.clickAndWait("Continue");
    assert.equal((await person.answers())[0].trim(), STORY.trim());
  });
}
