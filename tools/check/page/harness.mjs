// Runs checks in Chromium: each in a profile of its own, with a scripted server of its own.
//
// A check fails on a wrong expectation, an error of a script, a report of the policy, or a request
// to another host. `person` has what people do: it types, clicks and reads.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import assert from "node:assert/strict";
import { ScriptedServer } from "./scripted_server.mjs";

const require = createRequire(`${process.env.PAGE_TOOLS}/`);
const { chromium } = require("playwright-core");
const axePath = require.resolve("axe-core/axe.min.js");

/** A name of another host that resolves to this machine. */
export const REBOUND = "rebound.example";

const CHECK_MS_MAX = 60_000;
const EXPECT_MS_MAX = 15_000;
// What the browser itself says of answers that are no success.
const EXPECTED_MESSAGES = /Failed to load resource: (?:the server responded|net::ERR_)/;

export class Harness {
  #browser;
  #page;
  #only;
  #isOwnPage;
  #failed = [];
  #nPassed = 0;

  /**
   * `page` is the address that the page comes from, `only` chooses checks by a part of a name, and
   * `isOwnPage` says that moeflux serves this page itself.
   */
  constructor(page, { only, isOwnPage }) {
    this.#page = page;
    this.#only = only;
    this.#isOwnPage = isOwnPage;
  }

  async start() {
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    const args = ["--no-sandbox", `--host-resolver-rules=MAP ${REBOUND} 127.0.0.1`];
    this.#browser = await chromium.launch({ executablePath, args });
  }

  /**
   * `prepare(server)` runs before the page is opened, and `expects` matches errors that the browser
   * may report. With `upstream`, the API is that of a server at this address. `hosts` is "any" for
   * a check that is about other hosts. Other options are those of a context.
   */
  async check(name, run, options = {}) {
    if (this.#only && !name.includes(this.#only)) return;
    const server = new ScriptedServer(this.#page);
    await server.start();
    options.prepare?.(server);
    server.upstream = options.upstream ?? null;
    const address = options.upstream && this.#isOwnPage ? options.upstream : server.url;
    const context = await this.#browser.newContext({
      viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options,
    });
    context.setDefaultTimeout(EXPECT_MS_MAX);
    const troubles = watch(context, options.hosts === "any" ? null : address, options.expects);
    const person = new Person(context, address);
    const began = Date.now();
    try {
      await person.open();
      await inTime(run({ person, page: person.page, server, context, url: address }));
      assert.deepEqual(troubles, []);
      this.#nPassed += 1;
      console.log(`ok      ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    } catch (error) {
      this.#failed.push(name);
      console.log(`FAILED  ${name}\n${error.stack}`);
      if (troubles.length > 0) console.log(`        said meanwhile: ${troubles.join("; ")}`);
      if (process.env.SHOTS) {
        await person.page?.screenshot({ path: `${process.env.SHOTS}/failed.png` }).catch(() => {});
      }
    }
    await context.close();
    server.stop();
  }

  /** Returns the exit status. */
  async end() {
    await this.#browser.close();
    console.log(`${this.#nPassed} checks passed, ${this.#failed.length} failed`);
    return this.#failed.length > 0 || this.#nPassed === 0 ? 1 : 0;
  }
}

/** Collects what must not happen. */
function watch(context, url, expects = /^$/) {
  const troubles = [];
  const host = url && new URL(url).host;
  context.on("weberror", (error) => troubles.push(`error: ${error.error().stack}`));
  context.on("console", (message) => {
    const text = message.text();
    if (message.type() !== "error" || EXPECTED_MESSAGES.test(text) || expects.test(text)) return;
    troubles.push(text);
  });
  context.on("request", (request) => {
    const address = new URL(request.url());
    if (host && address.protocol.startsWith("http") && address.host !== host) {
      troubles.push(`request to ${request.url()}`);
    }
  });
  context.on("dialog", (dialog) => {
    troubles.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return troubles;
}

function inTime(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("took too long")), CHECK_MS_MAX);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Waits until the value is what is wanted; says both if it never is. */
export async function eventually(read, wanted, what = "") {
  const until = Date.now() + EXPECT_MS_MAX;
  let found;
  for (;;) {
    found = await read();
    const isRight = typeof wanted === "function" ? wanted(found) : found === wanted;
    if (isRight) return found;
    if (Date.now() > until) break;
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  throw new Error(`${what || read}: ${JSON.stringify(found)}, wanted ${wanted}`);
}

/** Lets axe look at the page; nothing serious may be found. */
export async function inspect(page, what) {
  await page.evaluate(() => document.activeElement?.blur());
  // The policy lets no script in but the page's own; the browser's tools are outside of it.
  const isThere = await page.evaluate(() => "axe" in window);
  if (!isThere) await page.evaluate(readFileSync(axePath, "utf8"));
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) =>
        `${id}: ${target} ${failureSummary.replaceAll(/\s+/g, " ")}`));
  });
  assert.deepEqual(found, [], what);
}

/** Counts what is announced, which is the end of each answer; runs in the page. */
function countEnds() {
  window.nEnded = 0;
  addEventListener("DOMContentLoaded", () => {
    const region = document.getElementById("announcements");
    if (!region) return;
    new MutationObserver(() => {
      if (region.textContent !== "") window.nEnded += 1;
    }).observe(region, { childList: true });
  });
}

export class Person {
  page = null;
  #context;
  #address;

  constructor(context, address) {
    this.#context = context;
    this.#address = address;
  }

  /** Opens the page in a new tab, which is then the current one. */
  async open() {
    this.page = await this.#context.newPage();
    await this.page.addInitScript(countEnds);
    await this.page.goto(this.#address);
    await this.page.locator("#composer .send").waitFor();
    return this.page;
  }

  async ask(text) {
    await this.page.locator("#message").fill(text);
    await this.page.keyboard.press("Enter");
  }

  /** Asks, and waits until the answer has ended. */
  async askAndWait(text) {
    await this.#untilEnd(() => this.ask(text));
  }

  /** Clicks a button that asks for an answer, and waits until it has ended. */
  async clickAndWait(name) {
    await this.#untilEnd(() => this.button(name).last().click());
  }

  async #untilEnd(act) {
    // What ended before this is announced 50 ms later.
    const before = await this.page.evaluate(async () => {
      await new Promise((resolve) => setTimeout(resolve, 60));
      return window.nEnded;
    });
    await act();
    await eventually(() => this.page.evaluate(() => window.nEnded), (n) => n > before, "an end");
    await this.isDone();
  }

  async isDone() {
    await this.page.locator(".answer").last().waitFor();
    await eventually(() => this.page.locator(".answer").last().getAttribute("aria-busy"), "false");
    await eventually(() => this.page.locator(".send.stop").count(), 0);
  }

  button(name, within = this.page) {
    return within.getByRole("button", { name, exact: true });
  }

  answers() {
    return this.page.locator(".answer .prose").allInnerTexts();
  }

  async reads(text) {
    await eventually(async () => (await this.answers()).join("\n"), (found) => found.includes(text),
      `an answer with “${text}”`);
  }

  questions() {
    return this.page.locator(".bubble").allInnerTexts();
  }

  titles() {
    return this.page.locator(".entry-open").allInnerTexts();
  }

  async setting(label, text) {
    await this.button("Settings of this conversation").click();
    await this.page.getByLabel(label).fill(text);
    await this.page.keyboard.press("Escape");
  }
}
