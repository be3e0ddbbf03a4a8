// The view of the machine: it moves while an answer streams, and asks for nothing when unseen.
import assert from "node:assert/strict";
import { eventually, inspect } from "./harness.mjs";
import { ScriptedMachine } from "./scripted_machine.mjs";

const STORY = "Once upon a time there was a page. ".repeat(60);
const PHONE = { viewport: { width: 375, height: 667 }, hasTouch: true, isMobile: true };

const prepare = (server) => {
  server.machine = new ScriptedMachine();
};

export async function checks(harness) {
  await harness.check("the machine moves while an answer streams", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 10 });
    await person.button("Machine").click();
    await page.getByText("4.1 GB").waitFor();
    await person.ask("Tell a story");
    const now = () => value(page, "Now");
    await eventually(now, (text) => parseFloat(text) > 20);
    await eventually(() => value(page, "Experts found in memory"), (text) => /^\d\d %$/.test(text));
    await eventually(() => value(page, "Read from the drive per token"), (text) =>
      text.endsWith("MB"));
    await eventually(() => value(page, "Drive now"), (text) => text.endsWith("B/s"));
    assert.equal(await value(page, "In use"), "17.4 GB of 24.0 GB");
    assert.equal(await value(page, "Answers"), "1 running, 0 waiting");
    const widths = () => page.locator("#machine .fill").evaluateAll((bars) =>
      bars.map((bar) => bar.getAttribute("width")).join());
    const first = await widths();
    await eventually(widths, (found) => found !== first);
    await eventually(() => page.locator(".chart .line").getAttribute("d"), (d) => d?.length > 20);
    await page.keyboard.press("Escape");
    await person.isDone();
    await eventually(now, "0.0 tokens/s");
    assert.match(await value(page, "Over the answer"), /^[1-9]/);
  }, { prepare });

  await harness.check("the machine is asked only while somebody sees it", async (it) => {
    const { person, page, server } = it;
    const { machine } = server;
    const streams = () => eventually(() => machine.nStreams, (n) => n === 1, "one stream");
    const none = () => eventually(() => machine.nStreams, 0, "streams");
    await person.button("Machine").waitFor();
    await none();
    await page.locator("h1").click();
    await page.keyboard.press("i");
    await streams();
    await page.locator("#machine canvas").scrollIntoViewIfNeeded();
    await eventually(() => machine.nExpertsAsked, (n) => n > 2);
    machine.cut();
    await streams();
    await hide(page, true);
    await none();
    const n = machine.nExpertsAsked;
    await page.waitForTimeout(1500);
    assert.equal(machine.nExpertsAsked, n);
    await hide(page, false);
    await streams();
    await page.keyboard.press("Control+I");
    await none();
    assert.equal(await page.locator("#machine:visible").count(), 0);
    await person.button("Machine").click();
    await streams();
    await page.reload();
    await page.locator("#machine").waitFor();
    await streams();
    await person.button("Close the machine view").click();
    await none();
    assert.equal(await page.evaluate(() => document.activeElement.id), "show-machine");
  }, { prepare });

  await harness.check("an older server has no view of the machine", async ({ person, page }) => {
    await page.getByText("8,192 tokens").waitFor();
    await page.keyboard.press("Control+I");
    assert.equal(await person.button("Machine").count(), 0);
    assert.equal(await page.locator("#machine:visible").count(), 0);
    await person.button("Keys").click();
    assert.equal(await page.getByText("Show or hide the machine").count(), 0);
  });

  await harness.check("a machine without a drive, a card or a map says less", async (it) => {
    const { person, page } = it;
    await person.button("Machine").click();
    await page.getByText("All experts are in memory.").waitFor();
    for (const label of ["Experts found in memory", "Card", "Drive", "In use"]) {
      assert.equal(await measure(page, label).locator("visible=true").count(), 0, label);
    }
    assert.equal(await page.locator("#machine canvas:visible").count(), 0);
    assert.equal(await page.locator(".time-line:visible").count(), 0);
  }, {
    prepare: (server) => {
      prepare(server);
      Object.assign(server.machine.state, { experts: null, tiers: null, memory: null });
      server.machine.layers = [];
    },
  });

  await harness.check("the map of experts tells of each, by pointer and keys", async (it) => {
    const { person, page } = it;
    await person.button("Machine").click();
    await person.askAndWait("Hello");
    const map = page.locator("#machine canvas");
    await map.scrollIntoViewIfNeeded();
    const told = () => page.locator(".heat + .told").innerText();
    await map.hover({ position: { x: 2, y: 2 } });
    await eventually(told, (text) => text.startsWith("Layer 0, expert 0: used "));
    await page.mouse.move(10, 10);
    await map.focus();
    for (const key of ["ArrowRight", "ArrowRight", "ArrowDown"]) await page.keyboard.press(key);
    await eventually(told, (text) => /^Layer 1, expert 1: used .*(memory|drive)\.$/.test(text));
    await eventually(() => page.locator("#heat-summary").innerText(), (text) =>
      /24 layers .*1,536 experts: .* A tenth of them has \d+ %/.test(text));
  }, { prepare });

  await harness.check("the time of a token is shown by layer, and told of each", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: STORY, pauseMs: 20 });
    await person.button("Machine").click();
    const line = page.getByLabel("Time of the last token by layer");
    await page.locator("#machine canvas").scrollIntoViewIfNeeded();
    await eventually(() => server.machine.nExpertsAsked, (n) => n > 1);
    assert.equal(await line.locator("visible=true").count(), 0, "nothing was computed yet");
    await person.ask("Tell a story");
    await line.scrollIntoViewIfNeeded();
    const summary = () => page.locator("#time-line-summary").innerText();
    const told = () => page.locator(".time-scale + .told").innerText();
    const first = await summary();
    assert.match(first, /^Last token: [\d.]+ ms, [\d.]+ ms of it waiting .*; slowest: layer \d+, /);
    await eventually(summary, (text) => text !== first, "the next token");
    assert.equal(await line.locator(".computing").count(), 24);
    await line.hover({ position: { x: 2, y: 5 } });
    await eventually(told, (text) => /^Layer 0: [\d.]+ ms, .*; \d experts in memory, \d read/
      .test(text));
    const chosen = await summary();
    const n = server.machine.nExpertsAsked;
    await eventually(() => server.machine.nExpertsAsked, (found) => found > n + 1);
    assert.equal(await summary(), chosen, "one token while a layer is chosen");
    await page.mouse.move(10, 10);
    await eventually(summary, (text) => text !== chosen, "the newest token");
    await line.focus();
    for (const [key, layer] of [["ArrowRight", 0], ["ArrowRight", 1], ["End", 23],
      ["ArrowRight", 23], ["PageUp", 13], ["Home", 0], ["ArrowLeft", 0]]) {
      await page.keyboard.press(key);
      await eventually(told, (text) => text.startsWith(`Layer ${layer}: `), key);
    }
    await page.keyboard.press("Tab");
    await eventually(told, (text) => text.startsWith("Point at a layer"));
  }, { prepare });

  await harness.check("a finger chooses a layer of the last token", async ({ person, page }) => {
    await person.askAndWait("Hello");
    await person.button("Machine").click();
    const line = page.getByLabel("Time of the last token by layer");
    await line.scrollIntoViewIfNeeded();
    const told = () => page.locator(".time-scale + .told").innerText();
    const { width } = await line.boundingBox();
    await line.tap({ position: { x: width - 2, y: 10 } });
    await eventually(told, (text) => text.startsWith("Layer 23: "));
    await page.locator("#time-line-summary").tap();
    await eventually(told, (text) => text.startsWith("Point at a layer"));
  }, { prepare, ...PHONE });

  for (const [name, options] of [["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }], ["phone", PHONE]]) {
    await harness.check(`axe finds nothing serious in the machine view, ${name}`, async (it) => {
      const { person, page } = it;
      await person.askAndWait("Hello");
      await person.button("Machine").click();
      await page.locator("#machine canvas").scrollIntoViewIfNeeded();
      await page.locator(".time-line").focus();
      await page.keyboard.press("ArrowRight");
      await inspect(page, "the machine");
      const isWide = await page.evaluate(() =>
        document.documentElement.scrollWidth > document.documentElement.clientWidth);
      assert.equal(isWide, false, "nothing is wider than the screen");
      if (name !== "phone") return;
      assert.equal(await page.locator("#talk[inert]").count(), 1);
      await page.keyboard.press("Escape");
      await eventually(() => page.locator("#machine:visible").count(), 0);
      assert.equal(await page.locator("[inert]").count(), 0);
    }, { prepare, ...options });
  }

  await harness.check("bars do not glide for a person who wants it still", async (it) => {
    const { person, page } = it;
    await person.button("Machine").click();
    const bar = page.locator("#machine .fill").first();
    const time = await bar.evaluate((found) => getComputedStyle(found).transitionProperty);
    assert.equal(time, "none");
  }, { prepare, reducedMotion: "reduce" });
}

function measure(page, label) {
  const exact = page.locator("dt").getByText(label, { exact: true });
  return page.locator("#machine .measure").filter({ has: exact });
}

function value(page, label) {
  return measure(page, label).locator(".value").innerText();
}

/** A tab behind another one, as the page sees it. */
function hide(page, isHidden) {
  return page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
}
