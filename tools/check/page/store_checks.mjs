// What the browser keeps: the side bar, reloads, several tabs, files.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { eventually } from "./harness.mjs";

const STORY = Array.from({ length: 300 }, (_, index) => `Word ${index} of a story.`).join(" ");
const N_MANY = 200;

export async function checks(harness) {
  await harness.check("conversations are renamed, searched, deleted, brought back", async (it) => {
    const { person, page, server } = it;
    server.answer = (body) => ({ text: `On ${body.messages[0].content}: zebra` });
    for (const text of ["apples", "pears"]) {
      await person.button("New conversation").click();
      await person.askAndWait(text);
    }
    await eventually(() => person.titles().then(String), "pears,apples");
    await page.getByLabel("Rename “pears”").click();
    await page.getByLabel("Name of the conversation").fill("green pears");
    await page.keyboard.press("Enter");
    await eventually(() => person.titles().then(String), "green pears,apples");
    const search = page.getByLabel("Search conversations");
    await search.fill("GREEN");
    await eventually(() => person.titles().then(String), "green pears");
    await search.fill("apples: zebra");
    await eventually(() => person.titles().then(String), "apples");
    await search.fill("");
    await eventually(() => person.titles().then(String), "green pears,apples");
    await page.getByLabel("Delete “green pears”").click();
    await eventually(() => person.titles().then(String), "apples");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "apples");
    await person.button("Undo").click();
    await eventually(() => person.titles().then(String), "green pears,apples");
    await person.reads("On pears: zebra");
    await page.getByLabel("Delete “green pears”").click();
    await eventually(() => person.titles().then(String), "apples");
    await page.reload();
    await eventually(() => person.titles().then(String), "apples");
  });

  await harness.check("after a reload in mid-answer the same seed continues", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 5 });
    await person.ask("Tell a story");
    await person.reads("Word 40");
    await page.reload();
    await page.locator(".trouble").getByText("The page was closed").waitFor();
    const kept = (await person.answers())[0];
    assert.ok(kept.includes("Word 20 of") && kept.length < STORY.length, kept);
    server.answer = () => ({ text: STORY, pauseMs: 2 });
    await person.button("Continue").click();
    await page.getByText("Computing the kept part again").waitFor();
    await person.isDone();
    assert.equal((await person.answers())[0].trim(), STORY);
    assert.equal(server.asked[0].seed, server.asked[1].seed);
    assert.equal(await page.locator(".answer").count(), 1);
  });

  await harness.check("another answer than the kept one is said, both stay", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, cutAfter: 60, pauseMs: 3 });
    await person.ask("Tell a story");
    await person.button("Continue").waitFor();
    server.answer = () => ({ text: "Something else." });
    await person.button("Continue").click();
    await page.getByText("The server gave another answer").waitFor();
    await page.getByText("2 of 2").waitFor();
    await person.reads("Some");
    await person.button("Previous version").click();
    await person.reads("Word 3");
  });

  await harness.check("what is deleted stops, and other answers go on", async (it) => {
    const { person, page, server } = it;
    const ended = [];
    server.answer = (body) => ({ text: STORY, pauseMs: 4, onClose: () => ended.push(body) });
    await person.ask("First");
    await person.reads("Word 3");
    await person.button("New conversation").click();
    await person.ask("Second");
    await person.reads("Word 3");
    await page.getByText("First", { exact: true }).first().hover();
    await page.getByLabel("Delete “First”").click();
    await eventually(() => ended.length, 1);
    assert.equal(ended[0].messages[0].content, "First");
    await person.isDone();
    assert.equal((await person.answers())[0].trim(), STORY);
  });

  await harness.check("a draft survives a reload", async ({ person, page }) => {
    await page.locator("#message").fill("Not sent yet");
    await page.reload();
    await eventually(() => page.locator("#message").inputValue(), "Not sent yet");
    await person.button("Send the message").click();
    await person.isDone();
    assert.equal(await page.locator("#message").inputValue(), "");
  });

  await harness.check("two tabs share one store and lose nothing", async (it) => {
    const { person, page: first, server } = it;
    server.answer = (body) => ({ text: `Re ${body.messages.at(-1).content}` });
    await person.askAndWait("From the first");
    const address = first.url();
    const second = await person.open();
    await second.goto(address);
    await second.reload();
    await person.reads("Re From the first");
    // Both answer the same turn at once: both are there, as versions.
    server.answer = (body) => ({ text: `Re ${body.messages.at(-1).content} `, pauseMs: 8 });
    await second.locator("#message").fill("second says");
    await first.locator("#message").fill("first says");
    const moment = Date.now() + 500;
    await Promise.all([first, second].map((page) => page.evaluate(clickAt, moment)));
    for (const page of [first, second]) {
      await eventually(() => page.locator(".question").last().getByText("of 2").count(), 1);
    }
    await person.isDone();
    // A name given in one tab while the other one asks.
    await first.getByLabel(/^Rename/).click();
    await first.getByLabel("Name of the conversation").fill("Shared");
    await Promise.all([first.keyboard.press("Enter"), person.ask("More")]);
    await eventually(() => second.locator("#title").innerText(), "Shared");
    await person.isDone();
    await first.reload();
    await eventually(() => first.locator("#title").innerText(), "Shared");
    const all = await first.evaluate(readTurns);
    assert.deepEqual(all.filter((turn) => turn.role === "user").map(({ text }) => text).sort(),
      ["From the first", "More", "first says", "second says"]);
  });

  await harness.check("an answer that comes in one tab is seen in the other", async (it) => {
    const { person, page: first, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 15 });
    await person.ask("Tell a story");
    await person.reads("Word 5");
    const second = await person.open();
    await second.goto(first.url());
    await second.reload();
    await second.getByText("Another tab receives this answer.").waitFor();
    const read = () => second.locator(".answer .prose").innerText();
    const before = await read();
    await eventually(read, (text) => text.length > before.length);
    assert.equal(await second.getByRole("button", { name: "Continue" }).count(), 0);
    await second.getByRole("button", { name: "Stop the answer" }).click();
    await first.getByText("Stopped.").waitFor();
    await first.getByRole("button", { name: "Answer again" }).first().click();
    await first.locator(".status").getByText("tokens/s").waitFor();
    await first.close();
    await second.reload();
    await second.getByRole("button", { name: "Continue" }).waitFor();
  });

  await harness.check("conversations are exported and imported", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: "# Yes\n\n* one\n* two", thoughts: "Hm." });
    await person.askAndWait("Is it?");
    server.answer = () => ({ text: "No." });
    await person.clickAndWait("Answer again");
    const files = {};
    for (const kind of ["JSON", "Markdown"]) {
      await person.button("Export and import").click();
      const download = page.waitForEvent("download");
      await person.button(`Save as ${kind}`).click();
      files[kind] = await (await download).path();
      await page.keyboard.press("Escape");
    }
    assert.match(readFileSync(files.Markdown, "utf8"), /## You\n\nIs it\?[\s\S]*## Answer\n\nNo\./);
    for (const [kind, name] of [["JSON", "a.json"], ["Markdown", "a.md"]]) {
      await person.button("Export and import").click();
      await page.getByLabel("Files that were saved here").setInputFiles({
        name, mimeType: "text/plain", buffer: readFileSync(files[kind]),
      });
      await page.getByText(`Added 1 from ${name}.`).waitFor();
      await page.keyboard.press("Escape");
    }
    await eventually(() => person.titles().then(String), "Is it?,Is it?,Is it?");
    await person.button("Export and import").click();
    await page.getByLabel("Files that were saved here").setInputFiles({
      name: "b.json", mimeType: "text/plain", buffer: Buffer.from("[1, 2"),
    });
    await page.getByText("b.json: the file is not valid JSON").waitFor();
  });

  await harness.check("two hundred conversations do not slow the page", async (it) => {
    const { person, page, server } = it;
    const conversations = Array.from({ length: N_MANY }, (_, index) => ({
      title: `Conversation ${index}`, created: index, updated: index, settings: {}, chosen: {},
      turns: Array.from({ length: 20 }, (_unused, turn) => ({
        id: `${turn}`, parent: turn === 0 ? null : `${turn - 1}`, created: turn,
        role: turn % 2 === 0 ? "user" : "assistant", text: `Text ${index}.${turn} `.repeat(100),
      })),
    }));
    const file = { format: "moeflux conversations", version: 1, conversations };
    await person.button("Export and import").click();
    await page.getByLabel("Files that were saved here").setInputFiles({
      name: "many.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)),
    });
    await page.getByText(`Added ${N_MANY} from many.json.`).waitFor({ timeout: 30_000 });
    await page.keyboard.press("Escape");
    await page.reload();
    await eventually(() => page.locator(".entry").count(), N_MANY);
    await page.getByLabel("Search conversations").fill("Text 137.19");
    await eventually(() => person.titles().then(String), "Conversation 137");
    await page.getByLabel("Search conversations").fill("");
    await page.getByText("Conversation 150", { exact: true }).click();
    await person.reads("Text 150.19");
    server.answer = () => ({ text: STORY, pauseMs: 5 });
    await person.ask("Go on");
    await person.reads("Word 20");
    const longest = await page.evaluate(longestFrame, 1000);
    assert.ok(longest < 200, `a frame took ${longest} ms`);
    console.log(`        the longest frame with ${N_MANY} conversations took ${longest} ms`);
  });
}

/** Sends what is in the field at this time, so that two tabs do it at once; runs in the page. */
async function clickAt(moment) {
  await new Promise((resolve) => setTimeout(resolve, moment - Date.now()));
  document.querySelector("#composer .send").click();
}

/** All turns of the store; runs in the page. */
async function readTurns() {
  const database = await new Promise((resolve) => {
    const request = indexedDB.open("moeflux");
    request.onsuccess = () => resolve(request.result);
  });
  return new Promise((resolve) => {
    const request = database.transaction("turns").objectStore("turns").getAll();
    request.onsuccess = () => resolve(request.result);
  });
}

/** The longest time between two frames; runs in the page. */
export function longestFrame(duration) {
  return new Promise((resolve) => {
    const began = performance.now();
    let last = began;
    let longest = 0;
    const frame = (now) => {
      longest = Math.max(longest, now - last);
      last = now;
      if (now - began < duration) requestAnimationFrame(frame);
      else resolve(Math.round(longest));
    };
    requestAnimationFrame(frame);
  });
}
