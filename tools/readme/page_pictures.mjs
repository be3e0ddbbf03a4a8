// Makes the pictures of the page in docs/pictures/: page-light.png, page-dark.png, page-models.png
// and page.webp, with moeflux itself and the model in the box.
//
//     pip install pillow
//     export PAGE_TOOLS=target/page-tools
//     node tools/readme/page_pictures.mjs target/release/moeflux [PART]
//
// PAGE_TOOLS is where tools/check/page.sh put playwright-core. PART is "stills", "models" or
// "film". Run it on a quiet machine, because the pictures show how fast the answers were. The
// film has the times that things took, but for waits longer than WAIT_MS_MAX.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Moeflux } from "../check/page/moeflux.mjs";

const { chromium } = createRequire(`${resolve(process.env.PAGE_TOOLS)}/`)("playwright-core");
const PICTURES = new URL("../../docs/pictures/", import.meta.url).pathname;
const PACK = new URL("pack_frames.py", import.meta.url).pathname;

// Room for a part of the 192 experts, so that there is something to see of the drive.
const OPTIONS = ["--slots", "40"];
const QUESTIONS = [
  "What does Vec::push do?", "What is a trait object?", "How do I sort a vector by a key?",
];
const FILMED_QUESTION = "What is a trait object?";
const LAST_QUESTION = "What does slice::sort do, and when is it slow?";
const PAUSE_MS = 2_000;
const FRAME_MS = 200;
const WAIT_MS_MAX = 1_500;
const KEY_MS = 45;
const END_MS = 3_500;
const STEP_MS_MAX = 120_000;

const [program, part = "stills models film"] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "moeflux-pictures-"));
// An empty cache and no network: the list of models is the same on every machine.
const env = { HF_HOME: work, HF_HUB_OFFLINE: "1" };
const server = await new Moeflux(program).start(OPTIONS, 0, env);
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  if (part.includes("stills")) {
    for (const colorScheme of ["light", "dark"]) await still(colorScheme);
  }
  if (part.includes("models")) await models();
  if (part.includes("film")) await film();
} finally {
  await browser.close();
  await server.kill();
  rmSync(work, { recursive: true });
}

async function open(options) {
  const context = await browser.newContext({ colorScheme: "light", ...options });
  context.setDefaultTimeout(STEP_MS_MAX);
  const page = await context.newPage();
  await page.goto(server.url);
  await page.locator("#model:enabled").waitFor();
  return page;
}

async function ask(page, question) {
  await page.locator("#message").fill(question);
  await page.keyboard.press("Enter");
}

/** A conversation of which the last answer streams, with the machine beside it. */
async function still(colorScheme) {
  const page = await open({ viewport: { width: 1280, height: 760 }, colorScheme });
  await page.getByRole("button", { name: "Machine", exact: true }).click();
  for (const [index, question] of QUESTIONS.entries()) {
    await ask(page, question);
    await page.getByText(/ first after /).nth(index).waitFor();
    await page.waitForTimeout(PAUSE_MS);
  }
  await ask(page, LAST_QUESTION);
  // The line below an answer, with ten tokens or more.
  const counts = page.getByText(/^\d\d tokens · /).locator("visible=true");
  await counts.nth(QUESTIONS.length).waitFor();
  pack([await page.screenshot()], `page-${colorScheme}.png`);
  await page.context().close();
}

async function models() {
  const page = await open({ viewport: { width: 1200, height: 760 } });
  await page.locator("#model").click();
  await page.getByRole("dialog").getByText("tokens/s").first().waitFor();
  await page.waitForTimeout(PAUSE_MS);
  pack([await page.screenshot()], "page-models.png");
  await page.context().close();
}

/** A question, its answer beside the machine, and the choice of a model. */
async function film() {
  // Bars that glide and a dot that blinks would make most of the bytes.
  const page = await open({ viewport: { width: 960, height: 600 }, reducedMotion: "reduce" });
  await page.keyboard.press("Control+B");
  await page.locator("h1").click();
  await page.keyboard.press("i");
  await page.waitForTimeout(PAUSE_MS);
  const frames = [];
  let isOver = false;
  const camera = (async () => {
    while (!isOver) {
      const atMs = performance.now();
      frames.push({ atMs, png: await page.screenshot() });
      await page.waitForTimeout(Math.max(0, FRAME_MS - (performance.now() - atMs)));
    }
  })();
  await page.waitForTimeout(2 * FRAME_MS);
  await page.locator("#message").focus();
  await page.keyboard.type(FILMED_QUESTION, { delay: KEY_MS });
  await page.keyboard.press("Enter");
  await page.getByText(/ first after /).waitFor();
  await page.waitForTimeout(WAIT_MS_MAX);
  await page.locator("#model").click();
  await page.getByRole("dialog").getByText("tokens/s").first().waitFor();
  await page.waitForTimeout(2 * WAIT_MS_MAX);
  isOver = true;
  await camera;
  pack(frames.map(({ png }) => png), "page.webp", timesOf(frames));
}

function timesOf(frames) {
  return frames.map(({ atMs }, index) => (index + 1 === frames.length ? END_MS
    : Math.min(WAIT_MS_MAX, Math.round(frames[index + 1].atMs - atMs))));
}

/** Writes frames as a picture of few colours; `times_ms` are how long each is shown. */
function pack(frames, name, timesMs = []) {
  const paths = frames.map((png, index) => {
    const path = join(work, `frame-${String(index).padStart(4, "0")}.png`);
    writeFileSync(path, png);
    return path;
  });
  const list = JSON.stringify({ frames: paths, times_ms: timesMs });
  execFileSync("python3", [PACK, join(PICTURES, name)], { input: list, stdio: ["pipe", 1, 2] });
}
