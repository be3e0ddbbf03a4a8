// Two answers beside each other, answers as tokens, and answers that go on from a token.
import assert from "node:assert/strict";
import { eventually, inspect } from "./harness.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };
const ANSWER = "First second third.\n\nFourth fifth.";

export async function checks(harness) {
  await sideBySide(harness);
  await asTokens(harness);
  await goingOn(harness);
}

async function sideBySide(harness) {
  await harness.check("two answers are compared, and one is kept", async (it) => {
    const { person, page, server } = it;
    await person.setting("Temperature", "0.9");
    await person.askAndWait("Hello");
    await open(page);
    const [left, right] = sides(page);
    const { seed } = server.asked[0];
    assert.equal(await left.getByLabel("Seed").inputValue(), String(seed));
    assert.equal(await right.getByLabel("Seed").inputValue(), "");
    await right.getByLabel("Temperature").fill("0.1");
    await right.getByLabel("System prompt").fill("Be brief.");
    server.answer = (body) => (body.temperature === 0.1 ? { text: "Hi from right." }
      : { text: "Hi from left, which is longer." });
    await person.button("Ask both").click();
    await left.getByText("Hi from left, which is longer.").waitFor();
    await right.getByText("Hi from right.").waitFor();
    await page.getByText("The answers are the same for 8 characters.").waitFor();
    const drawn = Number(await right.getByLabel("Seed").inputValue());
    const [, one, two] = server.asked;
    assert.deepEqual([one.seed, two.seed], [seed, drawn]);
    assert.deepEqual([one.temperature, two.temperature], [0.9, 0.1]);
    assert.deepEqual(two.messages, [{ role: "system", content: "Be brief." },
      { role: "user", content: "Hello" }]);
    assert.match(await right.locator(".facts").innerText(), /^\d+ tokens · /);
    await person.button("Keep right").click();
    await eventually(() => page.locator("dialog").count(), 0);
    await person.reads("Hi from right.");
    await page.getByText("3 of 3").waitFor();
    await person.button("Previous version").click();
    await person.reads("Hi from left");
    await page.reload();
    await person.reads("Hi from left");
    await person.askAndWait("Next");
    assert.equal(server.asked.at(-1).temperature, 0.9);
  });

  await harness.check("both answers come at the same time, and stop together", async (it) => {
    const { person, page, server } = it;
    await person.askAndWait("Hello");
    await page.locator(".question").hover();
    await page.locator(".question").getByLabel("Compare two answers").click();
    const [left, right] = sides(page);
    let nOpen = 0;
    let nOpenMost = 0;
    server.answer = () => {
      nOpen += 1;
      nOpenMost = Math.max(nOpenMost, nOpen);
      return { text: "word ".repeat(500), pauseMs: 10, onClose: () => { nOpen -= 1; } };
    };
    await person.button("Same seed").click();
    const seed = await left.getByLabel("Seed").inputValue();
    assert.match(seed, /^\d+$/);
    assert.equal(await right.getByLabel("Seed").inputValue(), seed);
    await person.button("Ask both").click();
    await left.getByText("tokens/s").waitFor();
    await right.getByText("tokens/s").waitFor();
    assert.equal(nOpenMost, 2);
    // Escape stops first; a second time, it closes.
    await page.keyboard.press("Escape");
    await left.getByText("Stopped.").waitFor();
    await right.getByText("Stopped.").waitFor();
    await eventually(() => nOpen, 0);
    assert.equal(await page.locator("dialog").count(), 1);
    await person.button("Ask both again").click();
    await eventually(() => nOpen, 2);
    await person.button("Stop both").click();
    await eventually(() => nOpen, 0);
    assert.deepEqual(new Set(server.asked.slice(1).map((body) => String(body.seed))),
      new Set([seed]));
    await page.keyboard.press("Escape");
    await eventually(() => page.locator("dialog").count(), 0);
    // Nothing was kept: what was shown is shown, and the others are versions.
    await person.reads("Hello.");
    await page.getByText("1 of 5").waitFor();
  });

  await harness.check("a kept answer goes on while the other one stops", async (it) => {
    const { person, page, server } = it;
    await person.askAndWait("Hello");
    await open(page);
    await sides(page)[0].getByLabel("Most tokens").fill("77");
    let n = 0;
    const stopped = [];
    server.answer = (body) => {
      n += 1;
      const name = body.max_tokens === 77 ? "left" : "right";
      return { text: `${name} `.repeat(150), pauseMs: 8, onClose: () => stopped.push(name) };
    };
    await person.button("Ask both").click();
    await sides(page)[0].getByText("left left").waitFor();
    await page.getByLabel("Keep its settings, too").check();
    await person.button("Keep left").click();
    await eventually(() => stopped[0], "right");
    await person.isDone();
    assert.equal((await person.answers())[0].trim(), "left ".repeat(150).trim());
    assert.equal(n, 2);
    server.answer = () => ({ text: "Next." });
    await person.askAndWait("And now?");
    assert.equal(server.asked.at(-1).max_tokens, 77);
  });

  await harness.check("a mistake in one side's settings is shown there", async (it) => {
    const { person, page, server } = it;
    await person.askAndWait("Hello");
    await open(page);
    const [, right] = sides(page);
    await right.getByText("More settings").click();
    await right.getByLabel("JSON schema").fill("{");
    await right.getByText("More settings").click();
    await person.button("Ask both").click();
    await eventually(() => page.evaluate(() => document.activeElement.id), "right-schema");
    await right.getByText("not valid JSON").waitFor();
    assert.equal(server.asked.length, 1);
  });

  for (const [name, options] of [["dark", { colorScheme: "dark" }], ["phone", PHONE]]) {
    await harness.check(`axe finds nothing serious in a comparison (${name})`, async (it) => {
      const { person, page, server } = it;
      await person.askAndWait("Hello");
      await open(page);
      await inspect(page, "its settings");
      server.answer = () => ({ text: ANSWER, thoughts: "Hm." });
      await person.button("Ask both").click();
      await page.getByText("Both answers are the same.").waitFor();
      await inspect(page, "its answers");
      await isNarrowEnough(page);
    }, options);
  }
}

async function asTokens(harness) {
  await harness.check("an answer is seen as tokens, with probabilities", async (it) => {
    const { person, page, server } = it;
    await person.button("Settings of this conversation").click();
    await page.getByLabel("Probabilities of tokens").selectOption("on");
    await page.keyboard.press("Escape");
    server.answer = () => ({ text: ANSWER });
    await person.askAndWait("Hello");
    const [{ logprobs, top_logprobs: nTop }] = server.asked;
    assert.deepEqual([logprobs, nTop], [true, 5]);
    await person.button("Tokens").click();
    assert.equal(await person.button("Tokens").getAttribute("aria-pressed"), "true");
    assert.equal(await page.locator(".answer .prose").isVisible(), false);
    const shown = page.locator(".token-text .token");
    const texts = await shown.allTextContents();
    assert.equal(texts.join("").replaceAll("↵\n", "\n"), `${ANSWER}<|im_end|>`);
    assert.equal(texts.at(-1), "<|im_end|>");
    assert.deepEqual(await classesOf(shown, 4), ["sure", "open", "open", "rare"]);
    await shown.nth(1).hover();
    await page.locator(".token-panel").getByText("35.0 %").waitFor();
    await page.locator(".token-panel").getByText("−1.050").waitFor();
    assert.equal(await page.locator(".token-panel tbody tr").count(), 4);
    await shown.nth(0).click();
    await shown.nth(2).hover();
    assert.match(await panelText(page), /^Token[\s\S]*First\s*chosen/);
    await shown.nth(0).click();
    await shown.nth(2).hover();
    assert.match(await panelText(page), /nd␣th\s*chosen/);
    await person.button("Text").click();
    assert.equal(await page.locator(".answer .prose").isVisible(), true);
    // They are kept with the answer.
    await page.reload();
    await person.button("Tokens").click();
    assert.equal(await shown.count(), texts.length);
    assert.equal(server.asked.length, 1);
  });

  await harness.check("the arrow keys go from token to token", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: "word ".repeat(60) });
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    await page.locator(".token-text").waitFor();
    await person.isDone();
    assert.equal(await page.locator(".token-text [tabindex='0']").count(), 1);
    await page.locator(".token-text [tabindex='0']").focus();
    const place = () => page.evaluate(() => document.activeElement.dataset.index);
    assert.equal(await place(), "0");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowLeft");
    assert.equal(await place(), "1");
    assert.equal(await page.locator(":focus").getAttribute("aria-label"), "word, 35.0 %");
    assert.equal(await page.locator(":focus").getAttribute("aria-selected"), "true");
    await page.keyboard.press("ArrowDown");
    const below = Number(await place());
    assert.ok(below > 5, `${below} is on the second line`);
    await page.keyboard.press("ArrowUp");
    assert.equal(await place(), "1");
    await page.keyboard.press("End");
    assert.equal(await place(), "60");
    await page.keyboard.press("ArrowRight");
    assert.equal(await place(), "60");
    assert.match(await panelText(page), /would end the answer/);
    await page.keyboard.press("Home");
    await page.keyboard.press("Tab");
    assert.equal(await page.locator(":focus").getAttribute("aria-label"),
      "Continue from here with word");
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Escape");
    assert.match(await panelText(page), /Point at a token/);
    assert.equal(await page.locator(".token-text [tabindex='0']").count(), 1);
  });

  await harness.check("an answer without probabilities is computed again for them", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: ANSWER });
    await person.askAndWait("Hello");
    server.answer = () => ({ text: ANSWER, pauseMs: 60 });
    await person.button("Tokens").click();
    await page.getByText("Computing the kept part again").waitFor();
    await page.locator(".token-text").waitFor();
    const [first, second] = server.asked;
    assert.deepEqual({ ...first, logprobs: true, top_logprobs: 5 }, second);
    assert.equal(await page.locator(".versions:visible").count(), 0);
    // If that fails, the answer is what it was.
    await person.askAndWait("Again");
    server.answer = () => ({ error: { status: 400, message: "no room" } });
    await person.button("Tokens").last().click();
    await page.getByText("could not be computed again: no room").waitFor();
    await person.isDone();
    assert.equal(await page.locator(".trouble:visible").count(), 0);
    assert.equal(await page.locator(".token-text:visible").count(), 1);
  });

  await harness.check("parts of characters are told as their bytes", async (it) => {
    const { person, page, server } = it;
    const part = (bytes, text) => ({ token: text, bytes, logprob: -0.5, top_logprobs: [] });
    server.answer = () => ({ text: "Hi 😀", pieceCharacters: 3, logprobs: [
      [part([72, 105, 32], "Hi ")],
      [part([0xf0, 0x9f], "\uFFFD"), part([0x98, 0x80], "\uFFFD")],
    ] });
    await page.evaluate(() => localStorage.setItem("settings", "{\"probabilities\": \"on\"}"));
    await page.reload();
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    const shown = page.locator(".token-text .token");
    await eventually(() => shown.allTextContents().then((texts) => texts.slice(0, 3).join("|")),
      "Hi |bytes F0 9F|😀");
    await shown.nth(2).click();
    assert.match(await panelText(page), /bytes 98 80[\s\S]*part of a character/);
  });

  for (const colorScheme of ["light", "dark"]) {
    await harness.check(`axe finds nothing serious in tokens (${colorScheme})`, async (it) => {
      const { person, page, server } = it;
      server.answer = () => ({ text: ANSWER });
      await person.askAndWait("Hello");
      await person.button("Tokens").click();
      await page.locator(".token-text .token").nth(3).click();
      await inspect(page, "tokens");
    }, { colorScheme });
  }

  await harness.check("a tap chooses a token on a phone", async ({ person, page, server }) => {
    server.answer = () => ({ text: `<b>${ANSWER}</b>` });
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    await page.locator(".token-text .token").nth(1).tap();
    await page.locator(".token-panel").getByText("35.0 %").waitFor();
    await inspect(page, "tokens on a phone");
    await isNarrowEnough(page);
    await page.locator(".token-text .token").nth(1).tap();
    assert.match(await panelText(page), /Point at a token/);
  }, PHONE);
}

async function goingOn(harness) {
  await harness.check("an answer goes on from another token", async ({ person, page, server }) => {
    server.answer = () => ({ text: ANSWER, thoughts: "Hm." });
    await person.setting("System prompt", "Be kind.");
    await person.setting("Temperature", "0.4");
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    await page.locator(".token-text .token").nth(2).click();
    server.completion = () => ({ text: " so it went.", cached: 9 });
    await person.clickAndWait("Continue from here with other");
    await person.reads("First seco other so it went.");
    await page.getByText("2 of 2").waitFor();
    await page.getByText("Continued after “…First seco” with “other”.").waitFor();
    assert.match(await page.locator(".facts").innerText(), /prompt \d+ tokens, 9 cached/);
    await page.locator(".thoughts summary").getByText("Thoughts").waitFor();
    const [conversation, token] = server.tokenized.slice(-2);
    assert.deepEqual(conversation, { messages: [
      { role: "system", content: "Be kind." }, { role: "user", content: "Hello" },
      { role: "assistant", content: "First seco", reasoning_content: "Hm." },
    ], continue_final_message: true });
    assert.deepEqual(token, { content: " other", add_special: false });
    const [asked] = server.completed;
    assert.equal(asked.prompt.at(-1), 906);
    assert.equal(asked.temperature, 0.4);
    assert.equal(asked.logprobs, 5);
    // It has tokens, too, those of the first answer with their alternatives among them.
    await person.button("Tokens").click();
    const shown = page.locator(".token-text .token");
    assert.deepEqual((await shown.allTextContents()).slice(0, 4), ["First", " seco", " other",
      " so i"]);
    await shown.nth(2).click();
    assert.match(await panelText(page), /nd␣th[\s\S]*other\s*chosen/);
    await person.button("Previous version").click();
    await person.reads("First second third.");
    // A token that is none alone is read with the text before it.
    server.nAlone = 2;
    await person.button("Tokens").click();
    await shown.nth(2).click();
    await person.clickAndWait("Continue from here with thing");
    await person.reads("First seco thing so it went.");
    assert.equal(server.tokenized.at(-1).messages.at(-1).content, "First seco thing");
    assert.equal(server.completed.at(-1).prompt.at(-1), 7);
  });

  await harness.check("a continuation that is cut or reloaded continues", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: ANSWER });
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    await page.locator(".token-text .token").nth(0).click();
    server.completion = () => ({ text: " word".repeat(80), pauseMs: 15 });
    await person.button("Continue from here with thing").click();
    await person.reads("thing word word");
    // At the first token, the thoughts must not go on in its place.
    assert.equal(server.tokenized.at(-1).messages.at(-1).content, " thing");
    await page.reload();
    server.completion = () => ({ text: " word".repeat(80) });
    await person.clickAndWait("Continue");
    assert.equal((await person.answers())[0].trim(), `thing${" word".repeat(80)}`);
    assert.deepEqual(server.completed[0], server.completed[1]);
    server.cut();
    await person.button("Answer again").click();
    await person.reads("First second third.");
    assert.equal(server.completed.length, 2);
  });

  await harness.check("a continuation that is refused says why", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: "Short." });
    await person.askAndWait("Hello");
    await person.button("Tokens").click();
    await page.locator(".token-text .token").nth(0).click();
    server.props.max_model_len = 1;
    await person.button("Continue from here with thing").click();
    await page.locator(".trouble").getByText("Prompt is too long").waitFor();
    server.props.max_model_len = 8192;
    await person.clickAndWait("Continue");
    await person.reads("thing and so on.");
  });
}

async function open(page) {
  await page.locator(".answer").last().getByLabel("Compare two answers").click();
  for (const side of sides(page)) {
    if (await side.locator("details").first().getAttribute("open") === null) {
      await side.locator("summary").first().click();
    }
  }
}

function sides(page) {
  return ["Left", "Right"].map((name) => page.getByRole("region", { name, exact: true }));
}

function panelText(page) {
  return page.locator(".token-panel:visible").innerText();
}

async function classesOf(shown, n) {
  const all = await shown.evaluateAll((list) => list.map((it) => it.className));
  return all.slice(0, n).map((name) => name.replace("token ", ""));
}

async function isNarrowEnough(page) {
  const isWide = await page.evaluate(() =>
    document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.equal(isWide, false, "nothing is wider than the screen");
}
