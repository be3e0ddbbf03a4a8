// Who can use it: both themes and a phone by axe-core, the keyboard alone, a quiet live region.
import assert from "node:assert/strict";
import { eventually, inspect } from "./harness.mjs";

const ANSWER = "# Title\n\nText with `code`, [a link](https://good.example/) and $x_1$.\n\n"
  + "> Quoted\n\n```python\n# comment\ndef f(x: int) -> str:\n    return \"a\" + str(1)\n```\n\n"
  + "```rust\n/// doc\n#[derive(Debug)]\nfn main() { println!(\"{}\", 1u8); }\n```\n\n"
  + "```html\n<p class=\"a\">x</p>\n```\n\n```diff\n+ a\n- b\n```\n\n"
  + "```css\n.a:hover { color: #fff; }\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |";
const CALL = { id: "1", name: "look_up", arguments: "{\"place\": \"Paris\", \"days\": 3}" };

export async function checks(harness) {
  for (const colorScheme of ["light", "dark"]) {
    await harness.check(`axe finds nothing serious in the ${colorScheme} theme`, async (it) => {
      await lookEverywhere(it);
    }, { colorScheme });
  }

  await harness.check("axe finds nothing serious on a phone", async (it) => {
    await lookEverywhere(it);
    const { page } = it;
    const isWide = await page.evaluate(() =>
      document.documentElement.scrollWidth > document.documentElement.clientWidth);
    assert.equal(isWide, false, "nothing is wider than the screen");
    await page.getByRole("button", { name: "Conversations", exact: true }).click();
    await page.locator(".entry-open").first().click();
    await eventually(() => page.locator("#sidebar:visible").count(), 0);
  }, { viewport: { width: 375, height: 667 }, hasTouch: true, isMobile: true });

  await harness.check("the theme is switched, and kept", async ({ page, person }) => {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await person.button("Theme: as the system").click();
    await person.button("Theme: light").click();
    const dark = await ground();
    assert.notEqual(light, dark);
    await page.reload();
    assert.equal(await ground(), dark);
    await person.button("Theme: dark").click();
    assert.equal(await ground(), light);
  }, { colorScheme: "light" });

  await harness.check("the keyboard is enough", async ({ person, page, server }) => {
    await page.keyboard.type("First");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("line two");
    await page.keyboard.press("Enter");
    await person.isDone();
    assert.equal(server.asked[0].messages[0].content, "First\nline two");
    await page.keyboard.press("Control+Shift+O");
    await page.keyboard.type("Second");
    await page.keyboard.press("Enter");
    await person.isDone();
    await page.keyboard.press("Control+Shift+Enter");
    await page.getByText("2 of 2").waitFor();
    await person.isDone();
    await page.keyboard.press("Alt+ArrowDown");
    await eventually(() => page.locator("#title").innerText(), "First");
    await page.keyboard.press("Control+K");
    assert.equal(await page.evaluate(() => document.activeElement.id), "search");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("F2");
    await page.keyboard.type("Renamed");
    await page.keyboard.press("Enter");
    await eventually(() => person.titles().then(String), "Renamed,First");
    await page.keyboard.press("Delete");
    await eventually(() => person.titles().then(String), "First");
    await page.keyboard.press("?");
    await page.getByRole("heading", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await eventually(() => page.locator("dialog").count(), 0);
    await page.keyboard.press("n");
    await eventually(() => page.locator("#title").innerText(), "New conversation");
    assert.equal(await page.evaluate(() => document.activeElement.id), "message");
    await page.keyboard.press("Control+,");
    await page.getByLabel("System prompt").waitFor();
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.activeElement.id), "message");
    await page.keyboard.press("Control+B");
    await eventually(() => page.locator("#sidebar:visible").count(), 0);
  });

  await harness.check("a screen reader hears that an answer came, not each word", async (it) => {
    const { person, page, server } = it;
    await page.evaluate(() => {
      window.heard = [];
      const region = document.getElementById("announcements");
      new MutationObserver(() => window.heard.push(region.textContent))
        .observe(region, { childList: true, characterData: true, subtree: true });
    });
    server.answer = () => ({ text: "word ".repeat(200), pauseMs: 4 });
    await person.askAndWait("Hello");
    const read = () => page.evaluate(() => window.heard.filter((it) => it !== ""));
    await eventually(read, (lines) => lines.length > 0);
    const heard = await read();
    assert.deepEqual(heard.at(-1), "The answer is complete: 200 tokens.");
    assert.ok(heard.length <= 2, heard.join());
    const live = "#turns [aria-live]:not([aria-live=off]), #turns[aria-live]";
    assert.equal(await page.locator(live).count(), 0);
  });

  await harness.check("nothing moves for a person who wants it still", async (it) => {
    const { person, page, server } = it;
    server.answer = () => ({ text: "word ".repeat(300), pauseMs: 8 });
    await person.ask("Hello");
    await page.locator(".pulse").waitFor();
    const name = await page.locator(".pulse").evaluate((it) => getComputedStyle(it).animationName);
    assert.equal(name, "none");
  }, { reducedMotion: "reduce" });
}

/** Opens everything there is, and lets axe look at it each time. */
async function lookEverywhere({ person, page, server }) {
  await inspect(page, "the start");
  const tools = JSON.stringify({ name: "look_up", parameters: { type: "object" } });
  await person.setting("Tools, as JSON", tools);
  server.answer = () => ({ text: ANSWER, thoughts: "Hm." });
  await person.askAndWait("Report");
  await page.locator(".thoughts summary").click();
  await eventually(() => page.locator(".hljs-comment, .hljs-keyword").count(), (n) => n > 2);
  await inspect(page, "an answer");
  server.answer = () => ({ calls: [CALL] });
  await person.askAndWait("Call");
  await inspect(page, "a call");
  await page.getByLabel("Result of look_up").fill("red");
  server.answer = () => ({ text: "Not much. ".repeat(30), cutAfter: 8, pauseMs: 5 });
  await person.button("Send result").click();
  await person.button("Continue").waitFor();
  await inspect(page, "a broken answer");
  server.answer = () => ({ error: { status: 400, message: "no" } });
  await person.ask("Fail");
  await person.button("Try again").waitFor();
  await inspect(page, "a failure");
  const at = { total: 4000, cache: 0, processed: 1000, time_ms: 1000 };
  server.answer = () => ({ text: "Slow.", progress: [at], waitMs: 3000 });
  await person.button("Try again").click();
  await page.locator(".status progress").last().waitFor();
  await inspect(page, "a wait");
  await page.keyboard.press("Escape");
  for (const name of ["Settings of this conversation", "Keys"]) {
    await person.button(name).click();
    await page.locator("dialog").waitFor();
    await inspect(page, name);
    await page.keyboard.press("Escape");
  }
  await page.evaluate(() => document.body.classList.remove("no-sidebar"));
  await inspect(page, "the list");
  await page.locator("#export-all").click();
  await inspect(page, "export");
  await page.keyboard.press("Escape");
  await page.locator(".entry").first().hover();
  await page.evaluate(() => document.body.classList.remove("no-sidebar"));
  await page.getByLabel(/^Delete/).first().click();
  await page.getByText("Deleted").first().waitFor();
  await inspect(page, "a notice");
  await person.button("Undo").click();
}
