//! Runs JSON-Schema-Test-Suite: checks which instances a grammar accepts, token by token.
//!
//!     cargo run --release -p moeflux-testing --example schemas -- FOLDER..
//!
//! Each folder contains files of the suite. An instance counts as accepted if it is accepted in any
//! order of its properties, because a grammar accepts only one order. Prints a line per file, the
//! refusals, and each invalid instance that was accepted, which is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use moeflux::ModelText;
use moeflux::sample::LogitMask;
use moeflux_chat::{AnswerForm, AnswerRules, AnswerStart, Grammars};
use serde_json::{Map, Value as Json};

/// Rows of the demo model's embedding.
const DEMO_VOCAB: usize = 8_192;

/// Maximum number of property orders that are tried.
const ORDERS_MAX: usize = 720;

#[derive(Clone, Copy, Debug, Default)]
struct SuiteCounts {
    n_held: usize,
    n_refused: usize,
    n_valid_taken: usize,
    n_valid_stopped: usize,
    n_invalid_stopped: usize,
    n_invalid_taken: usize,
}

impl SuiteCounts {
    fn add(&mut self, other: Self) {
        self.n_held += other.n_held;
        self.n_refused += other.n_refused;
        self.n_valid_taken += other.n_valid_taken;
        self.n_valid_stopped += other.n_valid_stopped;
        self.n_invalid_stopped += other.n_invalid_stopped;
        self.n_invalid_taken += other.n_invalid_taken;
    }

    #[expect(clippy::print_stdout, reason = "printing is the purpose")]
    fn print(self, name: &str) {
        let n_schemas = self.n_held + self.n_refused;
        let n_valid = self.n_valid_taken + self.n_valid_stopped;
        let n_invalid = self.n_invalid_taken + self.n_invalid_stopped;
        println!(
            "{name:32} {:4} of {n_schemas:4} schemas held; of their instances {:4} of {n_valid:4} \
             valid taken, {:4} of {n_invalid:4} invalid stopped",
            self.n_held, self.n_valid_taken, self.n_invalid_stopped
        );
    }
}

struct SchemaSuite {
    text: Arc<ModelText>,
    grammars: Grammars,
    /// The number of schemas by the text of the refusal, without its place.
    refusals: BTreeMap<String, usize>,
    taken: Vec<String>,
}

#[expect(clippy::print_stdout, reason = "printing is the purpose")]
fn main() -> ExitCode {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model");
    let text = Arc::new(ModelText::open(&model, DEMO_VOCAB).expect("the demo model"));
    let grammars = Grammars::new(text.clone(), None);
    let mut suite = SchemaSuite { text, grammars, refusals: BTreeMap::new(), taken: Vec::new() };
    for folder in std::env::args().skip(1) {
        let mut total = SuiteCounts::default();
        for path in files(Path::new(&folder)) {
            let counts = suite.file(&path);
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            counts.print(&name);
            total.add(counts);
        }
        total.print(&folder);
    }
    for (refusal, n_schemas) in &suite.refusals {
        println!("{n_schemas:4} refused: {refusal}");
    }
    for taken in &suite.taken {
        println!("WRONGLY TAKEN: {taken}");
    }
    if suite.taken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the suite");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let is_json = |path: &PathBuf| path.extension().is_some_and(|it| it == "json");
    let mut paths: Vec<_> = paths.filter(is_json).collect();
    paths.sort();
    paths
}

impl SchemaSuite {
    fn file(&mut self, path: &Path) -> SuiteCounts {
        let bytes = std::fs::read(path).expect("a readable file");
        let groups: Json = serde_json::from_slice(&bytes).expect("a file of the suite");
        let mut counts = SuiteCounts::default();
        for group in groups.as_array().into_iter().flatten() {
            self.group(group, path, &mut counts);
        }
        counts
    }

    fn group(&mut self, group: &Json, path: &Path, counts: &mut SuiteCounts) {
        let schema = &group["schema"];
        let form = AnswerForm::JsonSchema(schema.clone());
        let rules = AnswerRules { form, ..AnswerRules::default() };
        if let Err(refusal) = self.grammars.constraint(&rules, &[], AnswerStart::Text) {
            counts.n_refused += 1;
            *self.refusals.entry(kind(&refusal.problem)).or_default() += 1;
            return;
        }
        counts.n_held += 1;
        for test in group["tests"].as_array().into_iter().flatten() {
            let is_taken = orders(&test["data"]).iter().any(|it| self.takes(&rules, it));
            match (test["valid"] == true, is_taken) {
                (true, true) => counts.n_valid_taken += 1,
                (true, false) => counts.n_valid_stopped += 1,
                (false, false) => counts.n_invalid_stopped += 1,
                (false, true) => {
                    counts.n_invalid_taken += 1;
                    let file = path.display();
                    self.taken.push(format!("{file}: {schema} {}", test["data"]));
                }
            }
        }
    }

    fn takes(&self, rules: &AnswerRules, instance: &Json) -> bool {
        let constraint = self.grammars.constraint(rules, &[], AnswerStart::Text);
        let mut constraint = constraint.expect("it was made before").expect("a schema demands");
        let tokens = self.text.tokenizer().encode_plain(&instance.to_string()).expect("short");
        for token in tokens {
            let mut logits = vec![0.0; DEMO_VOCAB];
            constraint.apply(&mut logits);
            if logits[token.0 as usize] == f32::NEG_INFINITY {
                return false;
            }
            constraint.accept(token);
        }
        assert_eq!(constraint.failure(), None, "{rules:?}");
        constraint.may_end()
    }
}

/// Returns a refusal without its place and values.
fn kind(problem: &str) -> String {
    let keyword = problem.split('`').nth(1).filter(|_| problem.contains("keyword `"));
    keyword.map_or_else(|| problem.to_owned(), |keyword| format!("the keyword `{keyword}`"))
}

/// Returns an instance with its properties in every order, up to a limit.
fn orders(value: &Json) -> Vec<Json> {
    let mut orders = match value {
        Json::Array(items) => lists(items).into_iter().map(Json::Array).collect(),
        Json::Object(members) => {
            let values: Vec<Json> = members.values().cloned().collect();
            let names: Vec<&String> = members.keys().collect();
            let mut orders = Vec::new();
            for values in lists(&values) {
                for order in permutations(names.len()) {
                    let member = |idx: &usize| (names[*idx].clone(), values[*idx].clone());
                    orders.push(Json::Object(order.iter().map(member).collect::<Map<_, _>>()));
                }
                if orders.len() > ORDERS_MAX {
                    break;
                }
            }
            orders
        }
        other => vec![other.clone()],
    };
    orders.truncate(ORDERS_MAX);
    orders
}

/// Returns lists of the items, each in every order.
fn lists(items: &[Json]) -> Vec<Vec<Json>> {
    let mut lists = vec![Vec::new()];
    for item in items {
        let orders = orders(item);
        let longer = |list: &Vec<Json>| {
            let with = |order: &Json| list.iter().chain([order]).cloned().collect();
            orders.iter().map(with).collect::<Vec<Vec<Json>>>()
        };
        lists = lists.iter().flat_map(longer).take(ORDERS_MAX).collect();
    }
    lists
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for idx in 0..n {
        let inserted = |order: &Vec<usize>| {
            let at = |place: usize| {
                let mut order = order.clone();
                order.insert(place, idx);
                order
            };
            (0..=order.len()).rev().map(at).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(inserted).take(ORDERS_MAX).collect();
    }
    all
}
