// What answers look like: Markdown, code, mathematics, long texts, and hostile ones.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";
import { longestFrame } from "./store_checks.mjs";

const HOSTILE = [
  "<script>window.ran = 1</script>", "<img src=x onerror=\"window.ran = 2\">",
  "<img src=\"https://evil.example/a.png\">", "![x](https://evil.example/b.png)",
  "![x](data:image/png;base64,AAAA)", "<svg onload=\"window.ran = 3\"></svg>",
  "<iframe src=\"https://evil.example\"></iframe>", "<a href=\"javascript:window.ran=4\">one</a>",
  "[two](javascript:window.ran=5)", "[three](JaVaScRiPt:window.ran=6)",
  "[four](data:text/html,<script>window.ran=7</script>)", "[five](vbscript:x)",
  "[six](//evil.example/c)", "<https://good.example/page>", "[seven](https://good.example/x \"t\")",
  "<b onclick=\"window.ran = 8\">bold</b>", "<style>body { display: none }</style>",
  "<form action=\"https://evil.example\"><button>send</button></form>",
  "<meta http-equiv=\"refresh\" content=\"0;url=https://evil.example\">",
  "<link rel=stylesheet href=https://evil.example/d.css>", "<base href=\"https://evil.example/\">",
  "<math><mi//xlink:href=\"data:x,<script>window.ran=9</script>\">",
  "<video poster=https://evil.example/e>", "```html\n<script>window.ran = 10</script>\n```",
  "```\"><img src=x onerror=window.ran=11>\nx\n```",
  "$<img src=x onerror=window.ran=12>$", "$$<script>window.ran=13</script>$$",
  "| <img src=x onerror=window.ran=14> |\n|---|\n| ![x](https://evil.example/f) |",
  "<div style=\"background: url(https://evil.example/g)\">styled</div>",
  "<p id=\"scroller\" name=\"message\">clobber</p>", "`<img src=x onerror=window.ran=15>`",
  "[eight]: https://evil.example/h\n\n[eight]",
  "<details open ontoggle=\"window.ran=16\">x</details>",
];
const REPORT = [
  "Let $a_1 * b_2 * c$ hold, and \\(x_i\\). It costs $5 and $6.", "$$\nE_1 = m_1 c^2\n\nx_2\n$$",
  "```python\ndef f(x):\n    return \"é\" + x\n```", "| a | b |\n|---|--:|\n| 1 | 2 |",
  "- [x] done\n- [ ] open", "1. one\n\n   ```js\n   let a = 1;\n   ```\n2. two",
  "A line<br>break, H<sub>2</sub>O, **bold** and *italic*.",
].join("\n\n");
const MILLION = 1_000_000;

export async function checks(harness) {
  await harness.check("code, tables, lists and mathematics are shown", async (it) => {
    const { person, page, server, context } = it;
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    server.answer = () => ({ text: REPORT, pauseMs: 1 });
    await person.askAndWait("Report");
    const math = await page.locator(".math").allInnerTexts();
    assert.deepEqual(math.map((it) => it.trim()).sort(),
      ["$$\nE_1 = m_1 c^2\n\nx_2\n$$", "$a_1 * b_2 * c$", "\\(x_i\\)"]);
    assert.match((await person.answers())[0], /It costs \$5 and \$6\./);
    await eventually(() => page.locator(".hljs-keyword").count(), (n) => n >= 2);
    assert.equal(await page.locator(".table td[align=right]").innerText(), "2");
    assert.match((await person.answers())[0], /☑ done[\s\S]*☐ open/);
    assert.equal(await page.locator(".prose sub, .prose br, .prose strong, .prose em").count(), 4);
    await person.button("Copy", page.locator(".code").first()).click();
    const read = () => page.evaluate(() => navigator.clipboard.readText());
    await eventually(read, "def f(x):\n    return \"é\" + x");
    await person.button("Copy this answer").click();
    await eventually(read, REPORT);
  });

  await harness.check("hostile answers run nothing and fetch nothing", async (it) => {
    const { person, page, server } = it;
    const texts = [...HOSTILE, HOSTILE.join("\n\n"), HOSTILE.join(" ")];
    let index = 0;
    server.answer = () => ({ text: texts[index], thoughts: texts[index], pieceCharacters: 3 });
    for (; index < texts.length; index += 1) {
      await person.ask(`Say ${index} ${texts[index].slice(0, 400)}`);
      await eventually(() => page.locator(".answer").count(), index + 1);
      await person.isDone();
    }
    for (const summary of await page.locator(".thoughts summary").all()) await summary.click();
    server.answer = () => ({ calls: [{ id: "1", name: HOSTILE[1], arguments: HOSTILE.join("") }] });
    await person.askAndWait("Call");
    await page.reload();
    await eventually(() => page.locator(".answer").count(), texts.length + 1);
    await page.waitForTimeout(500);
    const found = await page.evaluate(() => {
      const inside = (what) => [...document.querySelectorAll("#turns *")].filter(what);
      const bad = "script, img, iframe, svg:not(.icon), form, style, meta, link, base, video, math";
      return {
        ran: window.ran ?? null,
        elements: inside((it) => it.matches(bad)).map((it) => it.outerHTML),
        handlers: inside((it) => [...it.attributes].some(({ name }) => /^on|^style$/.test(name)))
          .map((it) => it.outerHTML),
        links: [...document.querySelectorAll("#turns a")].map((it) =>
          `${it.getAttribute("href")} ${it.rel} ${it.target}`),
        display: getComputedStyle(document.body).display,
      };
    });
    assert.equal(found.ran, null);
    assert.deepEqual(found.elements, []);
    assert.deepEqual(found.handlers, []);
    assert.equal(found.display, "grid");
    const allowed = /^https:\/\/(good|evil)\.example\/\S* noopener noreferrer _blank$/;
    assert.ok(found.links.length > 0);
    for (const link of found.links) assert.match(link, allowed);
    assert.ok(server.paths.every((path) => !/evil|^\/x$|png/.test(path)), server.paths.join());
  });

  await harness.check("the policy of the page stops what is not its own", async (it) => {
    const { page, server } = it;
    const response = await page.goto(page.url());
    const policy = response.headers()["content-security-policy"];
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'",
      "connect-src 'self'", "img-src 'self' data:", "base-uri 'none'", "form-action 'none'",
      "frame-ancestors 'none'", "require-trusted-types-for 'script'"]) {
      assert.ok(policy.includes(part), part);
    }
    assert.equal(response.headers()["x-content-type-options"], "nosniff");
    assert.equal(response.headers()["referrer-policy"], "no-referrer");
    assert.equal(response.headers()["cross-origin-opener-policy"], "same-origin");
    const refused = await page.evaluate(() => {
      try {
        document.body.innerHTML = "<b>x</b>";
        return "not refused";
      } catch (error) {
        return error.name;
      }
    });
    assert.equal(refused, "TypeError");
    assert.ok(server.paths.includes("/props"));
  }, { expects: /Trusted|trusted/ });

  await harness.check("a million characters do not freeze the page", async (it) => {
    const { person, page, server } = it;
    const sentence = "A sentence of some words, **bold** here and `code` there. ";
    const part = `${sentence.repeat(6)}\n\n- one\n- two\n\n`
      + `\`\`\`js\n${"const a = 1;\n".repeat(8)}\`\`\`\n\n`;
    const text = part.repeat(Math.ceil(MILLION / part.length));
    server.answer = () => ({ text, pieceCharacters: 400, pauseMs: 1 });
    await person.ask("Everything");
    await person.reads("A sentence");
    const during = await page.evaluate(longestFrame, 3000);
    await eventually(() => page.locator(".send.stop").count(), 0, "the end of a million");
    await eventually(() => page.locator(".answer").getAttribute("aria-busy"), "false");
    await page.waitForTimeout(500);
    const read = () => page.evaluate(() =>
      document.querySelector(".answer .prose")?.textContent.length ?? 0);
    await eventually(read, (n) => n > 700_000);
    await page.locator("#message").fill("");
    const began = Date.now();
    await page.locator("#message").pressSequentially("a");
    const key = Date.now() - began;
    await page.reload();
    await eventually(read, (n) => n > 700_000, "a million again");
    const after = await page.evaluate(longestFrame, 1000);
    console.log(`        longest frames: ${during} ms as it comes, ${after} ms after a reload; `
      + `a key ${key} ms`);
    assert.ok(during < 500 && after < 500 && key < 500);
  });

  await harness.check("long lines, code, lists and tables do not freeze it either", async (it) => {
    const { person, page, server } = it;
    const texts = [
      "word ".repeat(50_000), `\`\`\`python\n${"x = [1, 2, 3]  # a\n".repeat(14_000)}\`\`\``,
      Array.from({ length: 8_000 }, (_, index) => `${index + 1}. An item of a list`).join("\n"),
      `| a | b |\n|---|---|\n${"| one | two |\n".repeat(8_000)}`, "x".repeat(200_000),
    ];
    for (const [index, text] of texts.entries()) {
      server.answer = () => ({ text, pieceCharacters: 300, pauseMs: 1 });
      await person.button("New conversation").click();
      await person.ask(`Text ${index}`);
      await page.locator(".answer").waitFor();
      const longest = await page.evaluate(longestFrame, 1200);
      await person.button("Stop the answer").click({ timeout: 1000 }).catch(() => {});
      await person.isDone();
      console.log(`        text ${index}: longest frame ${longest} ms`);
      assert.ok(longest < 500, `text ${index}: a frame took ${longest} ms`);
    }
  });

  await harness.check("a person who reads is not moved; the end is a click away", async (it) => {
    const { person, page, server } = it;
    const text = Array.from({ length: 200 }, (_, index) =>
      `Paragraph ${index} of a long answer.\n\n\`\`\`js\nlet a = ${index};\n\`\`\``).join("\n\n");
    server.answer = () => ({ text, pauseMs: 2, pieceCharacters: 8 });
    await person.ask("Long");
    const scroller = page.locator("#scroller");
    const state = () => scroller.evaluate((it) => ({
      top: it.scrollTop, left: it.scrollHeight - it.scrollTop - it.clientHeight,
    }));
    await eventually(() => state(), ({ top }) => top > 400);
    assert.ok((await state()).left < 50, "it follows the end");
    await page.mouse.move(640, 300);
    await page.mouse.wheel(0, -300);
    await page.waitForTimeout(600);
    const place = await page.evaluate(paragraphInView);
    const { top } = await state();
    await page.waitForTimeout(800);
    assert.deepEqual(await page.evaluate(paragraphInView), place);
    assert.ok(Math.abs((await state()).top - top) <= 1);
    await person.button("Go to the end").click();
    await eventually(() => state(), ({ left }) => left < 50);
    await person.isDone();
    await eventually(() => state(), ({ left }) => left < 50);
    await eventually(() => page.locator("#to-end:visible").count(), 0);
  });
}

/** The first paragraph in view and where it is; runs in the page. */
function paragraphInView() {
  const found = [...document.querySelectorAll(".prose p")].find((it) =>
    it.getBoundingClientRect().top > 80);
  return [found.textContent, Math.round(found.getBoundingClientRect().top)];
}
