//! What other programs call our options and commands.
//!
//! **Invariant:** pure; asked only where what was typed is already refused.

/// Spellings of llama.cpp and Ollama, and what to type instead.
const OPTIONS: [(&str, &str); 8] = [
    ("-m", "'-m' is spelled '--model' here"),
    ("-c", "'-c' is spelled '--context' here"),
    ("--ctx-size", "'--ctx-size' is spelled '--context' here"),
    ("--n-predict", "'--n-predict' is spelled '--max-tokens' or '-n' here"),
    ("-ngl", NO_LAYERS),
    ("--n-gpu-layers", NO_LAYERS),
    ("-hf", HUB),
    ("--hf-repo", HUB),
];

const NO_LAYERS: &str = "there is no number of layers for the GPU: '--gpu-memory SIZE' limits what \
                         the model takes of it, and '--backend cpu' leaves it out";

const HUB: &str = "'--model OWNER/NAME:QUANT' names a model of the hub here, and asks to download \
                   what is missing";

/// Commands of the same programs.
const COMMANDS: [(&str, &str); 2] = [
    (
        "run",
        "'moeflux chat --model MODEL' talks with a model, and 'moeflux generate PROMPT --model \
             MODEL' answers once",
    ),
    ("ls", "'moeflux list' lists the models that are here"),
];

/// A tip on the first argument that another program would have understood. The arguments are those
/// behind the program's name.
pub(crate) fn of(args: &[String]) -> Option<&'static str> {
    let command = args.first()?;
    if let Some((_, tip)) = COMMANDS.iter().find(|(name, _)| name == command) {
        return Some(tip);
    }
    let typed = args.iter().take_while(|arg| *arg != "--");
    let mut names = typed.map(|arg| arg.split('=').next().unwrap_or_default());
    names.find_map(|name| OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, tip)| *tip))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(line: &str) -> Option<&'static str> {
        of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn other_spellings_get_ours() {
        for (line, ours) in [
            ("generate -m x.gguf hi", "--model"),
            ("chat -c 4096", "--context"),
            ("chat --ctx-size=4096", "--context"),
            ("generate hi -ngl 99", "--gpu-memory"),
            ("serve -hf a/b", "--model OWNER/NAME:QUANT"),
            ("run a/b", "moeflux chat"),
        ] {
            assert!(tip(line).unwrap_or_default().contains(ours), "{line}");
        }
    }

    #[test]
    fn our_own_spellings_and_texts_get_none() {
        for line in ["", "generate run", "generate -- -m", "generate -n 3", "chat --model x"] {
            assert_eq!(tip(line), None, "{line}");
        }
    }
}
