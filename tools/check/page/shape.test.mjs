// The shape of the page's files: direction of modules, lengths, sizes, libraries, no other host.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const PAGE = new URL("../../../crates/moeflux-server/page/", import.meta.url);
const N_LINES_MAX = 400;
const N_COLUMNS_MAX = 100;
const N_COMPRESSED_BYTES_MAX = 200_000;

const read = (name) => readFileSync(new URL(name, PAGE), "utf8");
const own = readdirSync(PAGE).filter((name) => name.includes("."));
const scripts = own.filter((name) => name.endsWith(".js"));

test("a module names only modules above it in the list of app.js", () => {
  const list = /\n\/\/ {5}texts[\s\S]*?\n\/\/\n/.exec(read("app.js"))[0];
  const groups = new Set(["texts", "browser", "rendering", "data", "views"]);
  const order = list.match(/[a-z_]+/g).filter((word) => !groups.has(word));
  const modules = scripts.filter((name) => name !== "theme.js").map((name) => name.slice(0, -3));
  assert.deepEqual([...order].sort(), modules.sort());
  for (const name of modules) {
    for (const [, other] of read(`${name}.js`).matchAll(/from "\.\/([a-z_]+)\.js"/g)) {
      assert.ok(order.indexOf(other) < order.indexOf(name), `${name} names ${other}`);
    }
  }
});

test("files are short, and say first what they do", () => {
  for (const name of own) {
    const lines = read(name).trimEnd().split("\n");
    assert.ok(lines.length <= N_LINES_MAX, `${name}: ${lines.length} lines`);
    lines.forEach((line, index) =>
      assert.ok(line.length <= N_COLUMNS_MAX, `${name}:${index + 1}: ${line.length} columns`));
    if (name.endsWith(".js")) assert.match(lines[0], /^\/\/ [A-Z].*/, name);
  }
});

test("markup is made in one module, and no element gets a style", () => {
  for (const name of scripts) {
    const code = read(name).replace(/\/\/.*|\/\*[\s\S]*?\*\//g, "");
    const isMarkup = name === "markup.js";
    const banned = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(/;
    if (!isMarkup) assert.doesNotMatch(code, banned, name);
    assert.doesNotMatch(code, /\.style\b|"style"|cssText/, name);
  }
  assert.doesNotMatch(read("index.html"), /\sstyle=|<style|\son[a-z]+=|<script>(?!<)/);
});

test("nothing names another host", () => {
  for (const name of own) {
    const others = read(name).match(/https?:\/\/[^\s"'`)]+/g) ?? [];
    assert.deepEqual(others.filter((it) => !it.startsWith("http://www.w3.org/2000/svg")), [], name);
  }
});

test("libraries are those that versions.json names", () => {
  const listed = Object.entries(JSON.parse(read("vendor/versions.json")));
  const there = readdirSync(new URL("vendor/", PAGE)).filter((name) => name !== "versions.json");
  assert.deepEqual(listed.map(([name]) => name).sort(), there.sort());
  for (const [name, { sha256 }] of listed) {
    const found = createHash("sha256").update(readFileSync(new URL(`vendor/${name}`, PAGE)));
    assert.equal(found.digest("hex"), sha256, name);
  }
});

test("all of it is small", () => {
  const all = [...own, ...readdirSync(new URL("vendor/", PAGE)).map((name) => `vendor/${name}`)];
  const sizes = all.map((name) => gzipSync(readFileSync(new URL(name, PAGE)), { level: 9 }).length);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  console.log(`${total} bytes compressed, at most ${N_COMPRESSED_BYTES_MAX}`);
  assert.ok(total <= N_COMPRESSED_BYTES_MAX);
});
