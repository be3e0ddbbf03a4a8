//! What other parsers read in the texts of `crates/moeflux-chat/src/calls/cases/`.
//!
//! Prints a row for each text in which another parser finds other calls than the tables there say,
//! and fails if `differences.md` does not explain exactly these. Only names and arguments are
//! compared.

use std::fmt::Write as _;
use std::path::Path;

use dynamo_parsers::tool_calling::ToolDefinition;
use dynamo_parsers::tool_calling::parsers::detect_and_parse_tool_call_with_recovery;
use serde_json::{Value as Json, json};
use tool_parser::ParserFactory;

/// Our format, and the names of the parsers of `tool-parser` and `dynamo-parsers` for it. Neither
/// has one for `hunyuan_3`.
const FORMATS: [(&str, &str, &str); 7] = [
    ("hermes", "qwen", "hermes"),
    ("qwen_xml", "qwen_xml", "qwen3_coder"),
    ("deepseek_v3", "deepseek", "deepseek_v3"),
    ("deepseek_v3_1", "deepseek31", "deepseek_v3_1"),
    ("kimi_k2", "kimik2", "kimi_k2"),
    ("glm_4_5", "glm45_moe", "glm47"),
    ("minimax_m2", "minimax_m2", "minimax_m2"),
];

/// The name and the arguments of each call; `None` if the parser gave up.
type Calls = Option<Vec<(String, Json)>>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases = folder.join("../../../crates/moeflux-chat/src/calls/cases");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file of the repository");
    let tools: Vec<Json> =
        serde_json::from_str(&read(&cases.join("tools.json"))).expect("tools in JSON");
    let mut rows = String::new();
    let mut n_readings = 0;
    for (format, theirs, others) in FORMATS {
        let text = read(&cases.join(format).with_extension("txt"));
        for case in text.split("=== ").skip(1) {
            let (title, rest) = case.split_once('\n').expect("a title");
            let (answer, ours) = rest.split_once("---\n").expect("a text");
            let answer = answer.strip_suffix('\n').unwrap_or(answer);
            let ours = expected(ours);
            let found = [
                ("tool-parser", tool_parser(theirs, answer, &tools).await),
                ("dynamo-parsers", dynamo(others, answer, &tools).await),
            ];
            for (parser, found) in found {
                n_readings += 1;
                if found.as_ref() != Some(&ours) {
                    writeln!(rows, "| {format} | {title} | {parser} | {} |", shown(&found))
                        .expect("into memory");
                }
            }
        }
    }
    let explained = read(&folder.join("differences.md"));
    let explained =
        explained.lines().filter(|line| line.starts_with("| ") && line.contains("-parser"));
    let explained: String = explained.map(|line| without_reason(line) + "\n").collect();
    println!("{n_readings} readings, {} differ:\n{rows}", rows.lines().count());
    if rows != explained {
        let only = |a: &str, b: &str| {
            let lines = a.lines().filter(|line| !b.lines().any(|it| it == *line));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        eprintln!("without a reason in differences.md:\n{}", only(&rows, &explained));
        eprintln!("no longer different:\n{}", only(&explained, &rows));
        std::process::exit(1);
    }
}

/// A row of the table without its last column.
fn without_reason(line: &str) -> String {
    let mut columns = line.split(" | ");
    let first: Vec<&str> = columns.by_ref().take(4).collect();
    format!("{} |", first.join(" | "))
}

fn shown(calls: &Calls) -> String {
    let Some(calls) = calls else { return "an error".to_owned() };
    let one = |(name, arguments): &(String, Json)| format!("`{name} {arguments}`");
    let calls: Vec<String> = calls.iter().map(one).collect();
    let text = if calls.is_empty() { "no call".to_owned() } else { calls.join(", ") };
    text.replace('|', "\\|").replace('\n', "\\n")
}

/// The calls of a table, which the tests of moeflux hold it to.
fn expected(lines: &str) -> Vec<(String, Json)> {
    let calls =
        lines.lines().filter(|line| !line.starts_with("text ") && !line.starts_with("cut "));
    // The line breaks of arguments are theirs.
    let calls = calls.collect::<Vec<_>>().join("\n");
    let calls = format!("\n{calls}");
    let call = |call: &str| {
        let (name, rest) = call.split_once(' ').expect("a name");
        (name.to_owned(), value(&rest[rest.find('{').expect("an object")..]))
    };
    calls.split("\ncall ").skip(1).map(call).collect()
}

/// Arguments that are no JSON are shown as a string.
fn value(arguments: &str) -> Json {
    serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into())
}

async fn tool_parser(name: &str, answer: &str, tools: &[Json]) -> Calls {
    let tool = |it: &Json| json!({"type": "function", "function": it});
    let tools: Json = tools.iter().map(tool).collect();
    let tools: Vec<_> = serde_json::from_value(tools).expect("tools as requests have them");
    let parser = ParserFactory::new().registry().create_parser(name).expect("a parser's name");
    let (_, calls) = parser.parse_complete_with_tools(answer, &tools).await.ok()?;
    let call = |it: tool_parser::ToolCall| (it.function.name, value(&it.function.arguments));
    Some(calls.into_iter().map(call).collect())
}

async fn dynamo(name: &str, answer: &str, tools: &[Json]) -> Calls {
    let tool = |it: &Json| ToolDefinition {
        name: it["name"].as_str().unwrap_or_default().to_owned(),
        parameters: Some(it["parameters"].clone()),
        strict: None,
    };
    let tools: Vec<ToolDefinition> = tools.iter().map(tool).collect();
    let found = detect_and_parse_tool_call_with_recovery(answer, Some(name), Some(&tools)).await;
    let (calls, _) = found.ok()?;
    Some(calls.into_iter().map(|it| (it.function.name, value(&it.function.arguments))).collect())
}
