// Choosing a model: the list, offers, downloads, loads, and what other tabs see of them.
import assert from "node:assert/strict";
import { eventually, inspect } from "./harness.mjs";
import { ScriptedModels } from "./scripted_models.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };
const WAITS = Infinity;

const prepare = (server) => {
  server.models = new ScriptedModels();
};

export async function checks(harness) {
  await listChecks(harness);
  await pullChecks(harness);
  await loadChecks(harness);
  await accessChecks(harness);
}

async function listChecks(harness) {
  await harness.check("models: the list says what each would do here", async (it) => {
    const { person, page } = it;
    await open(it);
    const groups = await page.locator(".models h3").allInnerTexts();
    assert.deepEqual(groups, ["Runs on this machine 5", "Needs more memory 2", "Not supported 1"]);
    const text = (name) => row(page, name).innerText();
    assert.match(await text("Qwen3-30B-A3B"), /3\.1–7\.9 tokens\/s/);
    assert.match(await text("Qwen3-30B-A3B"), /Download of 17\.2 GB/);
    assert.match(await text("Qwen3-30B-A3B"), /34 % of the experts in memory/);
    assert.match(await text("DeepSeek-V3.1"), /Needs at least 41\.0 GB of memory/);
    assert.match(await text("GLM-4.5-Air"), /Partly downloaded, 21\.5 of 60\.2 GB/);
    assert.match(await text("new-moe"), /the family new_moe is not supported/);
    assert.match(await text("scripted-model"), /Loaded/);
    assert.equal(await row(page, "scripted-model").getByRole("button").count(), 0);
    await page.getByLabel("Filter").fill("qwen 4 bit");
    await eventually(() => page.locator(".model").count(), 2);
    await page.getByLabel("Filter").fill("llama");
    await page.getByText("No model of the list matches.").waitFor();
    await person.button("Close").click();
    assert.equal(await page.evaluate(() => document.activeElement.id), "model");
  }, { prepare });

  await harness.check("models: an older server has no choice", async ({ person, page }) => {
    await page.getByText("8,192 tokens").waitFor();
    assert.equal(await page.locator("#model").isDisabled(), true);
    assert.equal(await person.button("Choose a model").count(), 0);
    await person.button("Keys").click();
    assert.equal(await page.locator("dialog").getByText("Choose a model").count(), 0);
  });

  await harness.check("models: where managing is off, the reason is there once", async (it) => {
    const { page } = it;
    await open(it);
    assert.equal(await page.getByText("mark a key").count(), 1);
    assert.equal(await page.locator(".models button").count(), 0);
    assert.equal(await page.getByLabel("Another model of the hub").isVisible(), false);
    assert.match(await row(page, "gpt-oss-20b").innerText(), /14–22 tokens\/s/);
  }, {
    prepare: (server) => {
      prepare(server);
      const reason = "this server has keys: start it with --allow-manage, and mark a key";
      server.models.manage = { allowed: false, reason };
    },
  });

  await harness.check("models: the list is asked only while somebody sees it", async (it) => {
    const { person, page, server: { models } } = it;
    await page.locator("#model:enabled").waitFor();
    await page.waitForTimeout(600);
    const before = [models.nListed, models.nTaskAsked];
    await page.waitForTimeout(1500);
    assert.deepEqual([models.nListed, models.nTaskAsked], before);
    assert.equal(models.nListed, 0);
    await open(it);
    await person.button("Close").click();
    const after = models.nTaskAsked;
    await page.waitForTimeout(5500);
    assert.equal(models.nTaskAsked, after);
  }, { prepare });
}

async function pullChecks(harness) {
  await harness.check("models: a download is cancelled, resumed and then loaded", async (it) => {
    const { person, page, server: { models } } = it;
    models.nPullSteps = WAITS;
    await open(it);
    await button(page, "Download Qwen3-30B-A3B").click();
    await page.getByText("17.2 GB in 12 files").waitFor();
    await page.getByText("qwen3_moe, 4 bits in groups of 64").waitFor();
    await button(page, "Download 17.2 GB and load").click();
    await taskSays(page, /^Downloading: \d.* of 17\.2 GB · 41\.0 MB\/s · about \d+ min left$/m);
    await taskSays(page, /It will be loaded/);
    const bar = page.locator(".task progress");
    const share = await bar.evaluate((found) => found.value);
    await eventually(() => bar.evaluate((found) => found.value), (value) => value > share);
    assert.equal(await button(page, "Load gpt-oss-20b").isDisabled(), true);
    await button(page, "Cancel").click();
    await taskSays(page, /cancelled[\s\S]*What arrived is kept/);
    await page.getByText("Partly downloaded, 5.1 of 17.2 GB").waitFor();
    models.nPullSteps = 4;
    models.offer.missing_bytes = 12.1e9;
    await button(page, "Resume Qwen3-30B-A3B").click();
    await page.getByText("Still to download").waitFor();
    await button(page, "Download 12.1 GB and load").click();
    await eventually(() => page.locator("dialog").count(), 0);
    await eventually(() => page.locator("#model").innerText(), (text) => text.startsWith("Qwen3"));
    assert.deepEqual(models.posts.map(({ what }) => what),
      ["offer", "pull", "cancel", "offer", "pull", "load"]);
    assert.equal(models.posts[4].body.bytes, 12.1e9);
    await page.keyboard.type("Hello");
    await page.keyboard.press("Enter");
    await person.reads("Hello.");
  }, { prepare });

  await harness.check("models: a name of the hub is looked up, or refused", async (it) => {
    const { page, server: { models } } = it;
    await open(it);
    const field = page.getByLabel("Another model of the hub");
    await field.fill("qwen");
    await field.press("Enter");
    await page.getByText("Write OWNER/NAME").waitFor();
    assert.equal(models.posts.length, 0);
    models.offer = { ...models.offer, problem: "name the kind: a/b:Q4_K_M; it has Q4_K_M, Q8_0" };
    await field.fill("a/b");
    await field.press("Enter");
    await page.locator(".offer").getByText("Name the kind: a/b:Q4_K_M").waitFor();
    assert.equal(await page.locator(".offer").getByText(/^Download/).count(), 0);
    models.offer = { ...models.offer, problem: null, fits_drive: false, free_bytes: 3e9 };
    await field.fill("a/b:Q4_K_M");
    await field.press("Enter");
    await page.locator(".offer").getByText("The drive has 3.0 GB free").waitFor();
    assert.equal(await page.locator(".offer").getByText(/^Download/).count(), 0);
    assert.equal(models.posts.at(-1).body.model, "a/b:Q4_K_M");
    await page.keyboard.press("Escape");
    await eventually(() => page.locator(".offer").count(), 0);
    assert.equal(await page.evaluate(() => document.activeElement.id), "hub-name");
    assert.equal(await page.locator("dialog").count(), 1);
  }, { prepare });

  await harness.check("models: a size that changes is shown again", async (it) => {
    const { page, server: { models } } = it;
    await open(it);
    await button(page, "Download Qwen3-30B-A3B").click();
    await button(page, "Download only, 17.2 GB").waitFor();
    models.offer.missing_bytes = 18.5e9;
    await button(page, "Download only, 17.2 GB").click();
    await page.getByText("Its size has changed").waitFor();
    assert.equal(models.task, null);
    await button(page, "Download only, 18.5 GB").click();
    await taskSays(page, /Qwen3-30B-A3B is downloaded/);
    await button(page, "Load Qwen3-30B-A3B").waitFor();
    assert.equal(models.current, "demo");
  }, { prepare });

  await harness.check("models: a reload of the page forgets no load", async (it) => {
    const { page, server: { models } } = it;
    models.nPullSteps = WAITS;
    await open(it);
    await button(page, "Download Qwen3-30B-A3B").click();
    await button(page, "Download 17.2 GB and load").click();
    await taskSays(page, /Downloading:/);
    await page.reload();
    await page.locator("#task-line").getByText("Downloading Qwen3-30B-A3B").waitFor();
    models.nPullSteps = 1;
    await eventually(() => models.current, "qwen3-30b-a3b");
    await page.getByText("Qwen3-30B-A3B is loaded.").waitFor();
  }, { prepare });

  await harness.check("models: a download that fails says why, and is resumed", async (it) => {
    const { page, server: { models } } = it;
    models.pullFailure = "the hub does not answer: check the connection, then pull again";
    await open(it);
    await button(page, "Download Qwen3-30B-A3B").click();
    await button(page, "Download 17.2 GB and load").click();
    await taskSays(page, /was not downloaded[\s\S]*The hub does not answer: check/);
    models.pullFailure = null;
    await page.locator(".task").getByText("Resume").click();
    await button(page, "Download only, 17.2 GB").click();
    await taskSays(page, /Qwen3-30B-A3B is downloaded/);
    assert.equal(models.current, "demo");
  }, { prepare });

  await harness.check("models: one is removed after a question in the page", async (it) => {
    const { page, server: { models } } = it;
    await open(it);
    await button(page, "Remove gpt-oss-20b").click();
    await page.getByText("This frees 12.1 GB.").waitFor();
    await button(page, "Keep it").click();
    assert.equal(models.posts.length, 0);
    await button(page, "Remove gpt-oss-20b").click();
    await button(page, "Remove").click();
    await taskSays(page, /gpt-oss-20b was removed/);
    await eventually(() => row(page, "gpt-oss-20b").count(), 0);
    await button(page, "Close this report").click();
    assert.equal(await page.locator(".task:visible").count(), 0);
  }, { prepare });
}

async function loadChecks(harness) {
  await harness.check("models: a load shows its phases and ends in a conversation", async (it) => {
    const { person, page, server: { models } } = it;
    await page.locator("#model:enabled").waitFor();
    await person.button("Choose a model").first().click();
    models.nLoadSteps = WAITS;
    await button(page, "Load gpt-oss-20b").click();
    await taskSays(page, /Checking whether it fits/);
    await taskSays(page, /2 answers are ending/);
    await taskSays(page, /^Loading: \d.* of 17\.0 GB/m);
    models.nLoadSteps = 1;
    await eventually(() => page.locator("dialog").count(), 0);
    await eventually(() => page.locator("#welcome-model").innerText(), "gpt-oss-20b");
    await page.getByText("32,768 tokens").waitFor();
    await page.getByText("gpt-oss-20b is loaded.").waitFor();
    await page.keyboard.type("Hello");
    await page.keyboard.press("Enter");
    await person.reads("Hello.");
    await person.button("Settings of this conversation").click();
    assert.equal(await page.getByLabel("Thoughts before an answer").count(), 0);
  }, { prepare });

  await harness.check("models: a message waits while the model is changed", async (it) => {
    const { person, page, server: { models } } = it;
    models.nLoadSteps = WAITS;
    await open(it);
    await button(page, "Load gpt-oss-20b").click();
    await taskSays(page, /2 answers are ending/);
    await person.button("Close").click();
    await person.ask("Hello");
    await page.locator(".status").getByText("The answer follows. Loading gpt-oss-20b").waitFor();
    await page.locator("#task-line").getByText(/Loading gpt-oss-20b · \d+ %.*messages wait/)
      .waitFor();
    models.nLoadSteps = 1;
    await person.reads("Hello.");
    await eventually(() => page.locator("#task-line:visible").count(), 0);
  }, { prepare });

  await harness.check("models: a load that fails says so", async (it) => {
    const { person, page, server: { models } } = it;
    models.loadFailure = "the file a.safetensors has other bytes: pull the model again";
    models.nAnswers = 0;
    await open(it);
    await button(page, "Load gpt-oss-20b").click();
    await taskSays(page, /Bringing the old model back/);
    await taskSays(page, /was not loaded[\s\S]*pull the model again[\s\S]*scripted-model answers/);
    await button(page, "Close").click();
    assert.match(await page.locator("#model").innerText(), /^scripted-model/);
    await person.ask("Hello");
    await person.reads("Hello.");
  }, { prepare });

  await harness.check("models: a load is cancelled, and the old model answers", async (it) => {
    const { page, server: { models } } = it;
    models.nLoadSteps = WAITS;
    await open(it);
    await button(page, "Load gpt-oss-20b").click();
    await taskSays(page, /^Loading: /m);
    await button(page, "Cancel").click();
    await taskSays(page, /Loading gpt-oss-20b was cancelled[\s\S]*scripted-model answers again/);
  }, { prepare });

  await harness.check("models: a server started again is asked with its token", async (it) => {
    const { page, server: { models } } = it;
    await open(it);
    models.start = "start-2";
    await button(page, "Load gpt-oss-20b").click();
    await eventually(() => models.current, "gpt-oss-20b");
    assert.equal(models.posts.filter(({ what }) => what === "load").length, 1);
  }, { prepare });

  await harness.check("models: a server that ends in the middle is said", async (it) => {
    const { page, server } = it;
    server.models.nPullSteps = WAITS;
    await open(it);
    await button(page, "Download Qwen3-30B-A3B").click();
    await button(page, "Download only, 17.2 GB").click();
    await taskSays(page, /Downloading:/);
    server.isDown = true;
    server.cut();
    await page.locator("dialog").getByText("The server does not answer.").waitFor();
    server.isDown = false;
    server.models.task = null;
    server.models.start = "start-2";
    await taskSays(page, /was not downloaded[\s\S]*was started again[\s\S]*What arrived is kept/);
    await eventually(() => page.locator("dialog").getByText("does not answer").count(), 0);
  }, { prepare });

  await harness.check("models: two tabs see the same task and model", async (it) => {
    const { person, page, server: { models } } = it;
    const other = await person.open();
    await other.locator("#model:enabled").waitFor();
    models.nLoadSteps = WAITS;
    await open({ page });
    await button(page, "Load gpt-oss-20b").click();
    await other.locator("#task-line").getByText("Loading gpt-oss-20b").waitFor();
    await open({ page: other });
    await taskSays(other, /^Loading: /m);
    models.nLoadSteps = 1;
    await eventually(() => page.locator("#welcome-model").innerText(), "gpt-oss-20b");
    await eventually(() => other.locator("#welcome-model").innerText(), "gpt-oss-20b");
    await taskSays(other, /gpt-oss-20b is loaded/);
    await eventually(() => row(other, "gpt-oss-20b").innerText(), (text) =>
      text.includes("Loaded"));
    assert.equal(await other.locator("dialog").count(), 1);
    await eventually(() => page.locator("dialog").count(), 0);
  }, { prepare });
}

async function accessChecks(harness) {
  await harness.check("models: the keyboard is enough", async (it) => {
    const { page, server: { models } } = it;
    const { keyboard } = page;
    await page.locator("#model:enabled").waitFor();
    await keyboard.press("Control+Shift+L");
    await row(page, "GLM-4.5-Air").waitFor();
    await keyboard.type("30b");
    await eventually(() => page.locator(".model").count(), 1);
    for (let n = 0; n < 3; n += 1) await keyboard.press("Tab");
    assert.equal(await focused(page), "Download Qwen3-30B-A3B");
    await keyboard.press("Enter");
    await eventually(() => focused(page), "Download 17.2 GB and load");
    await keyboard.press("Escape");
    assert.equal(await focused(page), "Download Qwen3-30B-A3B");
    await keyboard.press("Enter");
    await eventually(() => focused(page), "Download 17.2 GB and load");
    models.nPullSteps = WAITS;
    await keyboard.press("Enter");
    await eventually(() => focused(page), "Cancel");
    await taskSays(page, /Downloading:/);
    await keyboard.press("Enter");
    await eventually(() => focused(page), "Close this report", "after a cancel");
    await keyboard.press("Enter");
    await eventually(() => page.evaluate(() => document.activeElement.id), "model-filter");
    await keyboard.press("Control+A");
    await keyboard.type("oss");
    for (let n = 0; n < 3; n += 1) await keyboard.press("Tab");
    assert.equal(await focused(page), "Load gpt-oss-20b");
    await keyboard.press("Enter");
    await eventually(() => page.evaluate(() => document.activeElement.id), "message");
    assert.equal(models.current, "gpt-oss-20b");
  }, { prepare });

  await harness.check("models: phases are read aloud, not each number", async (it) => {
    const { page, server: { models } } = it;
    models.nPullSteps = 30;
    await open(it);
    await page.evaluate(() => {
      window.heard = [];
      for (const region of document.querySelectorAll("[role=status], [aria-live]")) {
        new MutationObserver(() => window.heard.push(region.textContent))
          .observe(region, { childList: true, characterData: true, subtree: true });
      }
    });
    await button(page, "Download Qwen3-30B-A3B").click();
    await button(page, "Download only, 17.2 GB").click();
    await taskSays(page, /is downloaded/);
    const heard = await page.evaluate(() => window.heard.filter((text) => text !== ""));
    assert.ok(heard.some((text) => text === "Downloading Qwen3-30B-A3B. Downloading."));
    assert.match(heard.at(-1), /^Qwen3-30B-A3B is downloaded/);
    assert.ok(heard.length <= 6, heard.join("|"));
  }, { prepare });

  for (const [name, options] of [["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }], ["phone", PHONE]]) {
    await harness.check(`models: axe finds nothing serious, ${name}`, async (it) => {
      await lookEverywhere(it);
    }, { prepare, ...options });
  }

  await harness.check("models: on a phone the view is the whole screen", async (it) => {
    const { page } = it;
    await open(it);
    const box = await page.locator("dialog").boundingBox();
    assert.deepEqual([box.x, box.y, box.width, box.height], [0, 0, 390, 844]);
  }, { prepare, ...PHONE });
}

/** Opens everything there is about models, and lets axe look at it each time. */
async function lookEverywhere(it) {
  const { page, server: { models } } = it;
  const isNotWide = async () => assert.equal(await page.evaluate(() => [document.documentElement,
    ...document.querySelectorAll("dialog")].some((box) => box.scrollWidth > box.clientWidth)),
  false, "nothing is wider than the screen");
  models.nPullSteps = WAITS;
  models.nLoadSteps = WAITS;
  models.loadFailure = "the file has other bytes: pull the model again";
  await page.locator("#model:enabled").waitFor();
  await inspect(page, "the start");
  await open(it);
  await inspect(page, "the list");
  await isNotWide();
  await button(page, "Download Qwen3-30B-A3B").click();
  await page.getByText("Expected here").waitFor();
  await inspect(page, "an offer");
  await button(page, "Download 17.2 GB and load").click();
  await taskSays(page, /Downloading:/);
  await inspect(page, "a download");
  await isNotWide();
  await button(page, "Close").click();
  await inspect(page, "the line");
  await isNotWide();
  models.nPullSteps = 1;
  await page.locator("#task-line").getByText(/Loading Qwen3-30B-A3B · \d/).waitFor();
  await page.locator("#task-line").click();
  await inspect(page, "a load");
  models.nLoadSteps = 1;
  await taskSays(page, /answers again/);
  await inspect(page, "a failure");
  await button(page, "Remove gpt-oss-20b").click();
  await inspect(page, "a question");
  models.manage = { allowed: false, reason: "this server has keys" };
  await button(page, "Keep it").click();
  await button(page, "Close").click();
  await open(it);
  await page.getByText("this server has keys").waitFor();
  await inspect(page, "managing is off");
}

async function open({ page }) {
  await page.locator("#model:enabled").click();
  await row(page, "GLM-4.5-Air").waitFor();
}

function button(page, name) {
  return page.locator("dialog").getByRole("button", { name, exact: true });
}

function row(page, name) {
  const exact = page.locator("strong").getByText(name, { exact: true });
  return page.locator(".model").filter({ has: exact });
}

function taskSays(page, wanted) {
  const read = async () => ((await page.locator(".task:visible").count()) > 0
    ? page.locator(".task").innerText() : "");
  return eventually(read, (text) => wanted.test(text), String(wanted));
}

function focused(page) {
  return page.evaluate(() => {
    const at = document.activeElement;
    return at.getAttribute("aria-label") ?? at.innerText;
  });
}
