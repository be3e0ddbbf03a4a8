//! Patterns compared with fancy-regex: published expressions and random ones.

use moeflux_testing::random::Rng;

use super::*;

/// The expressions of published tokenizers, with the families that use them.
const PUBLISHED: [&str; 14] = [
    // GPT-2, GPT-NeoX, OLMoE.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    // Qwen2, Qwen3; with {1,3} GLM-4.5, Llama 3 and MiniMax; with marks Qwen3.5.
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    // tiktoken's own spelling of cl100k.
    concat!(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    // gpt-oss.
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:",
        r"'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:",
        r"'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|",
        r"\s+(?!\S)|\s+",
    ),
    // Kimi K2.
    concat!(
        r"[\p{Han}]+|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo",
        r"}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo",
        r"}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    // DeepSeek V3 and R1.
    concat!(
        r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|",
        r"\s+(?!\S)|\s+",
    ),
    "[一-龥぀-ゟ゠-ヿ]+",
    // DeepSeek V2.
    r"\s+$",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    // Groups digits in threes, from the right.
    r"\d{1,3}(?=(?:\d{3})*\b)|\D+",
    r"(?<=\p{Ll})(?=\p{Lu})",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
];

const TEXTS: [&str; 12] = [
    "",
    " ",
    "It's 12  spaces,\n\n \tand 語 ÉÀ! ",
    "I'LL say 'ſo'  \r\n\r\n  \n x",
    "camelCase HTTPServer XMLñandÉcole 'tis",
    "1234567 89 12345,678.90 ½ Ⅻ ٣٤",
    "  leading\u{a0}\u{3000}spaces   ",
    "日本語のテキストとカタカナ、漢字。한국어 текст",
    "e\u{301}\u{327}a\u{300}\u{301} नमस्ते ภาษาไทย",
    "😀👍🏽 👨‍👩‍👧 $€£ <|im_start|>/*//**/#define _x_",
    "\r\r\n\n\u{85}\u{2028}\u{2029}\u{b}\u{c}\t",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!!!!",
];

fn ours(expression: &str, text: &str) -> Result<Vec<(usize, usize)>, String> {
    Pattern::new(expression)?.matches(text, &budget_for(text)).collect()
}

fn budget_for(text: &str) -> StepBudget {
    let budget = StepBudget::new();
    budget.add_bytes(text.len());
    budget
}

fn theirs(expression: &str, text: &str) -> Result<Vec<(usize, usize)>, String> {
    let regex = fancy_regex::Regex::new(expression).map_err(|error| error.to_string())?;
    let places = regex.find_iter(text).map(|it| it.map(|it| (it.start(), it.end())));
    places.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Returns a seeded generator of numbers below a bound.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut rng = Rng::new(seed);
    move |bound| rng.below(bound)
}

fn made(next: &mut impl FnMut(usize) -> usize, depth: usize) -> String {
    const ATOMS: [&str; 16] = [
        "a", "b", "é", " ", r"\s", r"\S", r"\p{L}", "[ab]", "[^a]", ".", r"\d", r"\w", "$", "^",
        r"\b", "(?i:A)",
    ];
    const TIMES: [&str; 12] = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "++"];
    const GROUPS: [&str; 8] = ["(?:", "(?:", "(", "(?>", "(?=", "(?!", "(?<=", "(?<!"];
    if depth == 0 || next(3) == 0 {
        return format!("{}{}", ATOMS[next(ATOMS.len())], TIMES[next(TIMES.len())]);
    }
    let parts: Vec<String> = (0..=next(3)).map(|_| made(next, depth - 1)).collect();
    match next(3) {
        0 => parts.concat(),
        1 => format!("(?:{})", parts.join("|")),
        _ => {
            let (group, repetition) = (GROUPS[next(GROUPS.len())], TIMES[next(TIMES.len())]);
            let repetition =
                if group.contains('=') || group.contains('!') { "" } else { repetition };
            format!("{group}{}){repetition}", parts.concat())
        }
    }
}

#[test]
fn published_expressions_match_as_in_the_library() {
    let letters: Vec<char> = TEXTS.concat().chars().collect();
    let mut next = random(7);
    for expression in PUBLISHED {
        for text in TEXTS {
            assert_eq!(ours(expression, text), theirs(expression, text), "{expression} {text:?}");
        }
        for _ in 0..300 {
            let text: String = (0..next(40)).map(|_| letters[next(letters.len())]).collect();
            assert_eq!(ours(expression, &text), theirs(expression, &text), "{expression} {text:?}");
        }
    }
}

#[test]
fn expressions_made_at_random_match_as_in_the_library() {
    let letters: Vec<char> = "aaabbbé   \n1A".chars().collect();
    let mut n_compared = 0;
    for seed in 0..2_000 {
        let mut next = random(seed);
        let expression = made(&mut next, 3);
        for _ in 0..6 {
            let text: String = (0..next(14)).map(|_| letters[next(letters.len())]).collect();
            // Expressions that either side refuses are skipped: ours supports fewer, theirs gives
            // up.
            let (Ok(ours), Ok(theirs)) = (ours(&expression, &text), theirs(&expression, &text))
            else {
                continue;
            };
            assert_eq!(ours, theirs, "seed {seed}: {expression} {text:?}");
            n_compared += 1;
        }
    }
    assert!(n_compared > 5_000, "{n_compared}");
}

#[test]
fn too_large_or_unknown_expressions_are_refused() {
    for (expression, reason) in [
        ("(", "parenthesis"),
        (r"(a)\1", "reference"),
        (r"a\Kb", "reset"),
        ("(?<=a+)b", "varying number"),
        ("(?:a*)*", "possibly empty"),
        ("a{1001}", "repetition count above 1000"),
        ("(?:(?:ab){1000}){1000}", "more than 4096 operations"),
        ("(?:(?:(?:$|){1000}){1000}){1000}", "more than 4096 operations"),
        (&"a".repeat(9000), "an expression of 9000 bytes"),
        (&"(".repeat(100), "nested"),
        (r"\p{Nonsense}", "property"),
        (r"[z-a]", "range"),
    ] {
        let problem = Pattern::new(expression).unwrap_err();
        let is_nested = reason == "nested" && !problem.is_empty();
        assert!(problem.to_lowercase().contains(reason) || is_nested, "{expression}: {problem}");
    }
    assert!(Pattern::literal("").is_err());
}

#[test]
fn the_step_limit_bounds_backtracking_and_lookahead() {
    let text = "a".repeat(50_000);
    for expression in ["(?:a|aa)+$b", "a+a+a+b", "a(?=(?:a|b)*x)|.", "(?s:.)*?x|.", "(?:a|b)+?c"] {
        let found = ours(expression, &text).map(|found| found.len());
        assert!(found.is_err_and(|it| it.contains("on this text")), "{expression}");
    }
}

#[test]
fn long_runs_take_few_steps_in_published_expressions() {
    for expression in PUBLISHED.into_iter().filter(|it| !it.starts_with(r"\d{1,3}")) {
        for unit in
            [" ", "a", "A", "1", "\n", "\r\n ", "!", "語", "e\u{301}", "a ", " \n", "'", "\u{301}"]
        {
            for end in ["", "x", "\n", "!"] {
                let text = unit.repeat(50_000) + end;
                let (pattern, budget) = (Pattern::new(expression).unwrap(), budget_for(&text));
                let is_found = pattern.matches(&text, &budget).all(|found| found.is_ok());
                assert!(is_found, "{expression} {unit:?} {end:?}");
            }
        }
    }
}
