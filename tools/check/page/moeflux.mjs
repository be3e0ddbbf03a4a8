// Starts `moeflux serve`, and makes models that say what a check wants.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const START_MS_MAX = 60_000;
const SCRIPT_MODEL = new URL("../clients/script_model.py", import.meta.url).pathname;

export class Moeflux {
  url = null;
  #program;
  #process = null;

  constructor(program) {
    this.#program = program;
  }

  /** Starts the server with these options and variables; port 0 is a free one. */
  async start(options = [], port = 0, variables = {}) {
    const given = ["serve", "--port", String(port), "--cache-dir", "none", ...options];
    const env = { ...process.env, ...variables };
    const started = spawn(this.#program, given, { stdio: ["ignore", "ignore", "pipe"], env });
    this.#process = started;
    let said = "";
    this.url = await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`no address: ${said}`)), START_MS_MAX);
      started.on("exit", (status) => reject(new Error(`ended with ${status}: ${said}`)));
      started.stderr.on("data", (bytes) => {
        said += bytes;
        const found = /^serving .* at (http:\S+?)\/? /m.exec(said);
        if (!found) return;
        clearTimeout(late);
        resolve(`${found[1]}/`);
      });
    });
    return this;
  }

  get port() {
    return new URL(this.url).port;
  }

  /** Ends the process as a crash does. */
  async kill() {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.kill("SIGKILL");
    await ended;
  }
}

/** Folders of this run, removed at its end. */
export class Work {
  #folder = mkdtempSync(join(tmpdir(), "moeflux-page-"));

  file(name, text) {
    const path = this.path(name);
    writeFileSync(path, text);
    return path;
  }

  path(name) {
    return join(this.#folder, name);
  }

  /** A model that answers each question with this text. */
  model(name, text, layers) {
    const script = this.file(`${name}.json`, JSON.stringify({ plain: text, layers }));
    const folder = this.path(name);
    execFileSync(process.env.PYTHON ?? "python3", [SCRIPT_MODEL, script, folder]);
    return folder;
  }

  end() {
    rmSync(this.#folder, { recursive: true });
  }
}
