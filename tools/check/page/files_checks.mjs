// Files as text: dropped, pasted and chosen, counted before they are sent.
import assert from "node:assert/strict";
import { eventually } from "./harness.mjs";

export async function checks(harness) {
  await harness.check("files are dropped, counted, sent and shown", async (it) => {
    const { person, page, server } = it;
    await drop(page, "notes.txt", "one\ntwo\n".repeat(100));
    await eventually(() => page.locator(".chip").innerText(), (it) =>
      it.includes("notes.txt") && it.includes("800 bytes, 251 tokens"));
    await eventually(() => page.locator(".counter").innerText(), (it) =>
      it.includes("251 of 8,192 in use"));
    await page.locator("#message").fill("What is in it?");
    await eventually(() => page.locator(".counter").innerText(), (it) => it.includes("255 tokens"));
    await page.keyboard.press("Enter");
    await person.isDone();
    const sent = server.asked[0].messages[0].content;
    assert.match(sent, /^File notes\.txt:\n```\none\ntwo\n[\s\S]*```\n\nWhat is in it\?$/);
    assert.equal(await page.locator(".chip").count(), 0);
    await page.locator(".question .file summary").click();
    assert.match(await page.locator(".question .file pre").innerText(), /^one\ntwo/);
  });

  await harness.check("a file can be taken away, and what is no text is refused", async (it) => {
    const { person, page, server } = it;
    await page.locator("input[type=file]").setInputFiles([
      { name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("hello") },
      { name: "b.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 255, 1]) },
      { name: "c.txt", mimeType: "text/plain", buffer: Buffer.alloc(1_100_000, "x") },
    ]);
    await page.getByText("b.bin is not a text file").waitFor();
    await page.getByText("c.txt has 1.1 MB; at most 1.0 MB fit.").waitFor();
    await eventually(() => page.locator(".chip").count(), 1);
    await person.button("Remove a.txt").click();
    await person.askAndWait("Hello");
    assert.equal(server.asked[0].messages[0].content, "Hello");
  });

  await harness.check("a long text that is pasted becomes a file", async ({ page, context }) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.evaluate(() => navigator.clipboard.writeText("short"));
    await page.locator("#message").click();
    await page.keyboard.press("Control+V");
    assert.equal(await page.locator("#message").inputValue(), "short");
    await page.evaluate(() => navigator.clipboard.writeText("long ".repeat(2000)));
    await page.keyboard.press("Control+V");
    await eventually(() => page.locator(".chip").innerText(), (it) => it.includes("pasted text"));
    assert.equal(await page.locator("#message").inputValue(), "short");
  });

  await harness.check("a file that is longer than the context says so", async ({ page }) => {
    await drop(page, "big.txt", "word ".repeat(20_000));
    await eventually(() => page.locator(".chip").innerText(), (it) =>
      it.includes("longer than the context"));
  });
}

async function drop(page, name, text) {
  const data = await page.evaluateHandle(([fileName, content]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], fileName, { type: "text/plain" }));
    return transfer;
  }, [name, text]);
  await page.dispatchEvent("#talk", "dragover", { dataTransfer: data });
  await page.dispatchEvent("#talk", "drop", { dataTransfer: data });
}
