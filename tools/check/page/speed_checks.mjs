// How fast the page is: medians of 20. Over twice the goal fails.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";
import { ScriptedMachine } from "./scripted_machine.mjs";

const N = 20;
const PAINT_MS = 300;
const KEY_MS = 50;

export async function checks(harness) {
  await harness.check("the first paint comes soon", async ({ page, url }) => {
    const paints = [];
    const ready = [];
    for (let round = 0; round < N; round += 1) {
      const session = await page.context().newCDPSession(page);
      await session.send("Network.setCacheDisabled", { cacheDisabled: true });
      await page.goto("about:blank");
      await page.goto(url);
      await page.locator("#composer .send").waitFor();
      paints.push(await page.evaluate(() =>
        performance.getEntriesByName("first-contentful-paint")[0].startTime));
      ready.push(await page.evaluate(() => performance.now()));
      await session.detach();
    }
    report("first paint", paints, PAINT_MS);
    console.log(`        ready for a question: median ${Math.round(median(ready))} ms`);
  });

  await harness.check("keys reach the screen while an answer streams", typeBeside);

  await harness.check("keys reach the screen beside the machine view", async (it) => {
    await it.person.button("Machine").click();
    await typeBeside(it);
  }, {
    prepare: (server) => {
      server.machine = new ScriptedMachine();
    },
  });
}

/** Types while an answer comes with 200 tokens a second. */
async function typeBeside({ person, page, server }) {
  const text = "Some words of an answer, **bold**, and more.\n\n".repeat(2000);
  server.answer = () => ({ text, pieceCharacters: 5, pauseMs: 5 });
  await person.ask("Long");
  await person.reads("Some words");
  await page.waitForTimeout(1500);
  await page.locator("#message").focus();
  await page.evaluate(() => {
    window.keys = [];
    document.getElementById("message").addEventListener("keydown", (event) => {
      const began = event.timeStamp;
      requestAnimationFrame(() => setTimeout(() => {
        window.keys.push(performance.now() - began);
      }));
    });
  });
  for (let round = 0; round < N; round += 1) {
    await page.keyboard.press("a");
    await page.waitForTimeout(60);
  }
  const keys = await eventually(() => page.evaluate(() => window.keys), (it) => it.length === N);
  report("key to screen", keys, KEY_MS);
  await page.keyboard.press("Escape");
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function report(what, values, goal) {
  assert.equal(values.length, N);
  const middle = median(values);
  const [least, most] = [Math.min(...values), Math.max(...values)].map(Math.round);
  const range = `${least} to ${most}`;
  const line = `${what}: median of ${N} ${middle.toFixed(0)} ms (${range}), goal ${goal}`;
  console.log(`        ${line}`);
  assert.ok(middle <= 2 * goal, line);
}
