// Choosing a model with moeflux itself and the hub of the tests: a newcomer who uses only the page,
// and pages and proxies that must not manage anything.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer, request as ask } from "node:http";
import { REBOUND, eventually } from "./harness.mjs";
import { Moeflux, Work } from "./moeflux.mjs";

const NAME = "owner/words";
const ANSWER = "These are the words of another model.";
const SIZE = /Download (\d[\d.]* [kMG]B) and load/;
// What the browser says of requests that it does not let through, or that are refused.
const REFUSED = /CORS|blocked|Forbidden|form-action|Failed to load|Cross-Origin-Opener/;

export async function checks(harness, program) {
  const work = new Work();
  const hub = await startHub(work.model("words", ANSWER));
  const env = { HF_ENDPOINT: hub.url, HF_HOME: work.path("hub"), HF_HUB_OFFLINE: "" };
  await newcomer(harness, program, env);
  await hostile(harness, program, env);
  hub.end();
  work.end();
}

/** A hub on this machine with one model. */
async function startHub(folder) {
  const stdio = ["pipe", "pipe", "inherit"];
  const started = spawn(process.env.HUB, [`${NAME}=${folder}`], { stdio });
  const url = await new Promise((resolve) => {
    started.stdout.once("data", (bytes) => resolve(String(bytes).trim()));
  });
  return { url, end: () => started.stdin.end() };
}

async function newcomer(harness, program, env) {
  const server = await new Moeflux(program).start([], 0, env);
  const upstream = server.url;

  await harness.check("choosing: a model is found, pulled, loaded and talks", async (it) => {
    const { person, page } = it;
    await eventually(() => page.locator("#welcome-model").innerText(), (it) => it.includes("demo"));
    await person.askAndWait("What does Vec::push do?");
    await person.reads("Appends an element");
    await page.locator("#model").click();
    const list = page.getByRole("dialog");
    await list.getByText("Qwen3-30B-A3B", { exact: true }).first().waitFor();
    await page.getByLabel("Another model of the hub").fill(NAME);
    await page.keyboard.press("Enter");
    await list.getByRole("button", { name: SIZE }).click();
    await eventually(() => page.locator("#model").innerText(), (it) => it.startsWith(NAME));
    await eventually(() => page.getByRole("dialog").count(), 0);
    await person.askAndWait("Who are you?");
    await person.reads(ANSWER);
    // The first model is still in the list, and comes back by a click.
    await page.locator("#model").click();
    await list.getByRole("button", { name: /^Load .*demo/ }).click();
    await eventually(() => page.locator("#model").innerText(), (it) => it.includes("demo"));
    await person.askAndWait("What does Vec::push do?");
    assert.match((await person.answers()).at(-1), /Appends an element/);
  }, { upstream });

  await harness.check("choosing: a page of an earlier start goes on with a new one", async (it) => {
    const { person, page } = it;
    const { port } = server;
    await server.kill();
    await server.start([], port, env);
    await page.locator("#model").click();
    const list = page.getByRole("dialog");
    await list.getByRole("button", { name: `Load ${NAME}` }).click();
    await eventually(() => page.locator("#model").innerText(), (it) => it.startsWith(NAME));
    await person.askAndWait("Who are you?");
    await person.reads(ANSWER);
  }, { upstream, expects: /net::ERR/ });
  await server.kill();
}

async function hostile(harness, program, env) {
  const server = await new Moeflux(program).start([], 0, env);
  const upstream = server.url;
  const nothingBegan = async () => {
    const response = await fetch(new URL("moeflux/task", upstream));
    assert.deepEqual(await response.json(), { task: null });
  };

  await harness.check("choosing: a page of another origin manages nothing", async ({ context }) => {
    const page = await context.newPage();
    const foreign = await serve((_, response) => {
      response.writeHead(200, { "content-type": "text/html" });
      response.end("<!doctype html><title>foreign</title>");
    });
    await page.goto(foreign.url);
    const tried = await page.evaluate(async (target) => {
      const outcomes = [];
      const body = JSON.stringify({ model: "owner/words", bytes: 1 });
      for (const path of ["offer", "pull", "load", "remove", "cancel"]) {
        for (const options of [
          { mode: "no-cors", method: "POST", body },
          { mode: "no-cors", method: "POST", body, headers: { "content-type": "text/plain" } },
          { method: "POST", body, headers: { "content-type": "application/json" } },
          { method: "POST", body, headers: { "x-moeflux-start": "0" } },
        ]) {
          const sent = fetch(`${target}moeflux/${path}`, options);
          outcomes.push(await sent.then(({ type, status }) => `${type} ${status}`, () => "failed"));
        }
      }
      for (const path of ["", "moeflux/models", "moeflux/task"]) {
        const read = fetch(target + path, { headers: { accept: "text/html" } });
        outcomes.push(await read.then(({ ok }) => `read ${ok}`, () => "failed"));
      }
      const form = document.createElement("form");
      form.action = `${target}moeflux/cancel`;
      form.method = "post";
      form.enctype = "text/plain";
      document.body.append(form);
      form.submit();
      return outcomes;
    }, upstream);
    const isNothing = (outcome) => ["failed", "opaque 0", "read false"].includes(outcome);
    assert.ok(tried.every(isNothing), tried.join(", "));
    await page.getByText("is not allowed").waitFor();
    await nothingBegan();
    foreign.end();
  }, { upstream, expects: REFUSED, hosts: "any" });

  await harness.check("choosing: a name that resolves to this machine gets no page", async (it) => {
    const page = await it.context.newPage();
    const { port } = new URL(upstream);
    const answer = await page.goto(`http://${REBOUND}:${port}/`);
    assert.equal(answer.status(), 403);
    assert.match(await page.innerText("body"), /is not an allowed name of this server/);
    const status = await page.evaluate(async () => {
      const headers = { "content-type": "application/json" };
      const sent = await fetch("/moeflux/load", { method: "POST", headers, body: "{}" });
      return sent.status;
    });
    assert.equal(status, 403);
    await nothingBegan();
  }, { upstream, expects: REFUSED, hosts: "any" });

  await harness.check("choosing: behind a proxy, the page shows the list only", async (it) => {
    const page = await it.context.newPage();
    const proxy = await serve((request, response) => {
      const { hostname, port } = new URL(upstream);
      const headers = { ...request.headers, "x-forwarded-for": "192.0.2.1" };
      const { method, url: path } = request;
      const sent = ask({ hostname, port, method, path, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      request.pipe(sent);
    });
    await page.goto(proxy.url);
    await page.locator("#model").click();
    await page.getByText("the request came through a proxy").waitFor();
    assert.equal(await page.locator(".models button").count(), 0);
    await nothingBegan();
    proxy.end();
  }, { upstream, expects: REFUSED, hosts: "any" });
  await server.kill();
}

/** A server on this machine. */
async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  const end = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}/`, end };
}
