// node check.mjs PAGE [PART OF A NAME]: all checks in a browser, with the page of this address.
import { Harness } from "./harness.mjs";

const [page, only] = process.argv.slice(2);
const harness = new Harness(page, only);
await harness.start();
for (const part of (process.env.PARTS ?? "talk turns store content files look speed").split(" ")) {
  const { checks } = await import(`./${part}_checks.mjs`);
  await checks(harness);
}
process.exit(await harness.end());
