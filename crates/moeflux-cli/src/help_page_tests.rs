//! Compares `docs/commands.md` with the help of the program, or writes it.
//!
//! The page lists, for each command, its usage, its arguments and its options with their help,
//! values, defaults and environment variables. **Invariant:** the page contains only text of the
//! help, so the two cannot differ. Hidden options are left out.

use std::fmt::Write as _;
use std::path::Path;

use clap::builder::PossibleValue;
use clap::{Arg, Command};

/// Width of Markdown prose.
const N_COLUMNS: usize = 100;

/// Rewrites the page instead of comparing it.
const RENEW: &str = "MOEFLUX_RENEW";

const HEAD: &str = "# Commands

<!-- Written by crates/moeflux-cli/src/help_page_tests.rs from the help of the program. -->

`moeflux COMMAND --help` and `moeflux help COMMAND` print the same text in a terminal.
";

#[test]
fn the_page_of_commands_is_the_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = page(crate::command());
    if crate::system::cache::variable(RENEW).is_some_and(|it| it.as_os_str() == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(written, line)| written != line);
    assert!(
        written == page,
        "docs/commands.md is not the help of the program, first {differs:?}; this rewrites it: \
         {RENEW}=1 cargo test -p moeflux-cli help_page"
    );
}

/// Returns the page of a program and all its commands.
fn page(mut program: Command) -> String {
    program.build();
    let mut page = format!("{HEAD}\n{}", described(&mut program));
    let shown = |it: &&mut Command| !it.is_hide_set() && it.get_name() != "help";
    let mut commands = Vec::new();
    for command in program.get_subcommands_mut().filter(shown) {
        page += &link(&format!("moeflux {}", command.get_name()), command);
        commands.push(command);
    }
    for command in commands {
        let name = format!("moeflux {}", command.get_name());
        write!(page, "\n## {name}\n\n{}", of_command(command)).unwrap();
        for below in command.get_subcommands_mut().filter(shown) {
            page += &link(&format!("{name} {}", below.get_name()), below);
        }
        for below in command.get_subcommands_mut().filter(shown) {
            let name = format!("{name} {}", below.get_name());
            write!(page, "\n### {name}\n\n{}", of_command(below)).unwrap();
        }
    }
    page
}

/// Returns the list item that leads to the section of a command.
fn link(name: &str, command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let link = format!("[`{name}`](#{})", name.replace(' ', "-"));
    wrapped("* ", &format!("{link}: {}", sentence(&about)))
}

/// Returns the section of a command: its description and arguments.
fn of_command(command: &mut Command) -> String {
    let mut section = described(command);
    for (title, args) in groups(command) {
        section += &format!("\n{}\n", wrapped("", &format!("{}:", marked(&title))));
        args.iter().for_each(|arg| section += &item(arg));
    }
    section
}

/// Returns the description of a command, its usage, and the text below its options.
fn described(command: &mut Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = wrapped("", &sentence(&about));
    write!(text, "\n```text\n{usage}\n```\n").unwrap();
    if let Some(after) = command.get_after_help() {
        for paragraph in after.to_string().split("\n\n") {
            write!(text, "\n{}", wrapped("", &sentence(paragraph))).unwrap();
        }
    }
    text + if command.has_subcommands() { "\n" } else { "" }
}

/// Returns the arguments of a command by the heading under which the help shows them.
fn groups(command: &Command) -> Vec<(String, Vec<&Arg>)> {
    let mut groups: Vec<(String, Vec<&Arg>)> = Vec::new();
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&id(arg));
    let shown = || command.get_arguments().filter(is_shown);
    let positional = shown().filter(|arg| arg.is_positional());
    for arg in positional.chain(shown().filter(|arg| !arg.is_positional())) {
        let usual = if arg.is_positional() { "Arguments" } else { "Options" };
        let title = arg.get_help_heading().unwrap_or(usual);
        match groups.iter_mut().find(|(known, _)| known == title) {
            Some((_, args)) => args.push(arg),
            None => groups.push((title.to_owned(), vec![arg])),
        }
    }
    groups
}

fn id(arg: &Arg) -> &str {
    arg.get_id().as_str()
}

/// Returns the list item of an argument, with a list of its values if each has a help of its own.
fn item(arg: &Arg) -> String {
    let short = arg.get_short().map(|it| format!("`-{it}`, ")).unwrap_or_default();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, told) = told_default(&help);
    let takes_value = arg.get_action().takes_values();
    let default = arg.get_default_values().iter().map(|it| it.to_string_lossy().into_owned());
    let default: Vec<String> = default.collect();
    let has_default = takes_value && !arg.is_hide_default_value_set() && !default.is_empty();
    let mut text = format!("{short}`{arg}`: {}", sentence(&help));
    if let Some(default) = told.or(has_default.then(|| format!("`{}`", default.join(",")))) {
        write!(text, " Default: {default}.").unwrap();
    }
    if let Some(variable) = arg.get_env() {
        write!(text, " Environment variable: `{}`.", variable.to_string_lossy()).unwrap();
    }
    let values = if takes_value { arg.get_possible_values() } else { Vec::new() };
    let (described, bare): (Vec<PossibleValue>, Vec<PossibleValue>) =
        values.into_iter().filter(|it| !it.is_hide_set()).partition(|it| it.get_help().is_some());
    if !bare.is_empty() {
        let names: Vec<String> = bare.iter().map(|it| format!("`{}`", it.get_name())).collect();
        write!(text, " Values: {}.", names.join(", ")).unwrap();
    }
    let mut item = wrapped("* ", &text);
    for value in described {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        item += &wrapped("  * ", &format!("`{}`: {}", value.get_name(), sentence(&help)));
    }
    item
}

/// Returns a help text without its default in brackets, and the default.
fn told_default(help: &str) -> (String, Option<String>) {
    let parts = help.split_once(" [default: ");
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
    match parts {
        Some((before, (default, after))) => (format!("{before}{after}"), Some(marked(default))),
        None => (help.to_owned(), None),
    }
}

/// Returns Markdown of a help text, with the full stop that clap takes away.
fn sentence(help: &str) -> String {
    let text = marked(help.trim());
    if text.is_empty() || text.ends_with('.') { text } else { text + "." }
}

/// Returns a text in which options are code and nothing else is markup by accident.
fn marked(text: &str) -> String {
    let mut marked = String::new();
    for (idx, part) in text.split('`').enumerate() {
        if idx % 2 == 1 {
            write!(marked, "`{part}`").unwrap();
            continue;
        }
        let words: Vec<String> = part.split([' ', '\n']).map(marked_word).collect();
        marked += &words.join(" ");
    }
    marked
}

fn marked_word(word: &str) -> String {
    let start = word.find(|it| !['(', '"'].contains(&it)).unwrap_or(word.len());
    let (before, rest) = word.split_at(start);
    let is_name = |it: char| it.is_ascii_lowercase() || it == '-';
    let n_name = rest.find(|it| !is_name(it)).unwrap_or(rest.len());
    let (option, after) = rest.split_at(n_name);
    let is_long = option.starts_with("--") && option.len() > 3;
    let is_short = option.starts_with('-') && option.len() == 2 && option != "--";
    if is_long || is_short {
        return format!("{before}`{option}`{}", escaped(after));
    }
    escaped(word)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if ['\\', '*', '<', '[', ']'].contains(&letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Returns a paragraph or list item of at most 100 columns, whose code stays on one line.
fn wrapped(label: &str, text: &str) -> String {
    let mut lines = Vec::new();
    let mut line = label.to_owned();
    let mut is_begun = false;
    let mut is_code = false;
    let words = text.split(|it| {
        is_code ^= it == '`';
        it == ' ' && !is_code
    });
    for word in words {
        let n_columns = line.chars().count() + usize::from(is_begun) + word.chars().count();
        if is_begun && n_columns > N_COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(label.len())));
            is_begun = false;
            // At the beginning of a line these open a list or a heading.
            let opens = ["-", "+", "#", ">"].iter().any(|it| word.starts_with(it));
            line += if opens { "\\" } else { "" };
        }
        line += if is_begun { " " } else { "" };
        line += word;
        is_begun = true;
    }
    lines.push(line);
    lines.join("\n") + "\n"
}

#[test]
fn help_becomes_markdown() {
    for (help, expected) in [
        ("With --json: or -n", "With `--json`: or `-n`."),
        ("(--context, `--a b`)", "(`--context`, `--a b`)."),
        ("2 files; *.gguf", "2 files; \\*.gguf."),
        ("from -1 to 1 - x", "from -1 to 1 - x."),
        ("ends in `code`", "ends in `code`."),
        ("Two. Sentences.", "Two. Sentences."),
    ] {
        assert_eq!(sentence(help), expected);
    }
    let long = format!("{} `a b` - c", "x".repeat(91));
    assert_eq!(wrapped("* ", &long), format!("* {} `a b`\n  \\- c\n", "x".repeat(91)));
}
