// node check.mjs MOEFLUX [PART OF A NAME]: all checks in a browser. The page is that of MOEFLUX,
// or, to work on the page, what is at the address in PAGE. PARTS names files, as in "talk look".
import { Harness } from "./harness.mjs";
import { Moeflux } from "./moeflux.mjs";

const ALL = "talk turns store content files look compare machine models speed real choosing";
const [program, only] = process.argv.slice(2);
const served = process.env.PAGE ? null : await new Moeflux(program).start();
const harness = new Harness(process.env.PAGE ?? served.url, { only, isOwnPage: served !== null });
await harness.start();
for (const part of (process.env.PARTS ?? ALL).split(" ")) {
  const { checks } = await import(`./${part}_checks.mjs`);
  await checks(harness, program);
}
await served?.kill();
process.exit(await harness.end());
