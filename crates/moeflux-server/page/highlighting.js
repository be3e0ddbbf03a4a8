// Loads the highlighter and the grammars of languages when a block of code needs them.
//
// `highlight` returns markup for markup.js, or null if the language is not known. Only names of
// this table are loaded, so that an answer cannot choose an address.

const FILES = {
  bash: ["sh", "shell", "zsh", "console"],
  c: ["h"],
  cpp: ["c++", "cc", "hpp"],
  css: [],
  diff: ["patch"],
  go: ["golang"],
  ini: ["toml"],
  java: [],
  javascript: ["js", "jsx", "mjs", "cjs"],
  json: ["jsonc", "json5"],
  python: ["py", "python3"],
  rust: ["rs"],
  sql: ["sqlite", "postgresql"],
  typescript: ["ts", "tsx"],
  xml: ["html", "xhtml", "svg", "vue"],
  yaml: ["yml"],
};
const NAMES = new Map(
  Object.entries(FILES).flatMap(([name, others]) => [name, ...others].map((it) => [it, name])),
);

const loaded = new Map();

export function knowsLanguage(language) {
  return NAMES.has(language);
}

export async function highlight(text, language) {
  const name = NAMES.get(language);
  if (!name) return null;
  if (!loaded.has(name)) loaded.set(name, load(name));
  try {
    const highlighter = await loaded.get(name);
    return highlighter.highlight(text, { language: name, ignoreIllegals: true }).value;
  } catch {
    // Without a network the text stays as it is; the next block tries again.
    loaded.delete(name);
    return null;
  }
}

async function load(name) {
  const [core, grammar] = await Promise.all([
    import("./vendor/highlight.min.js"),
    import(`./vendor/highlight-${name}.min.js`),
  ]);
  core.default.registerLanguage(name, grammar.default);
  return core.default;
}
