//! Tips for users of other programs, whose options and commands have other names.
//!
//! **Invariant:** the functions are pure, and used only after the command line was refused.

use std::borrow::Cow;

use moeflux_io::OneLine;

/// Options of llama.cpp and Ollama, each with a tip.
const OPTIONS: [(&str, &str); 24] = [
    ("-m", "'-m' is spelled '--model' here"),
    ("-c", "'-c' is spelled '--context' here"),
    ("--ctx-size", "'--ctx-size' is spelled '--context' here"),
    ("--n-predict", "'--n-predict' is spelled '--max-tokens' or '-n' here"),
    ("-ngl", NO_LAYERS),
    ("--n-gpu-layers", NO_LAYERS),
    ("-ncmoe", NO_CPU_LAYERS),
    ("--n-cpu-moe", NO_CPU_LAYERS),
    ("-cmoe", NO_CPU_LAYERS),
    ("--cpu-moe", NO_CPU_LAYERS),
    ("-hf", HUB),
    ("--hf-repo", HUB),
    ("-hff", HUB_FILE),
    ("--hf-file", HUB_FILE),
    ("-t", "'-t' is spelled '--threads' here"),
    ("-s", "'-s' is spelled '--seed' here"),
    ("--gpu-layers", NO_LAYERS),
    ("-np", SESSIONS),
    ("--parallel", SESSIONS),
    ("--api-key", "'--api-key-file FILE' names a file with the keys here, one per line"),
    ("--kl-divergence", COMPARE),
    ("--kl-divergence-base", COMPARE),
    ("--vram", "'--vram' is spelled '--gpu-memory' here"),
    ("-v", "'-V' shows the version, '--stats' the speed of a run"),
];

const COMPARE: &str = "'moeflux eval --compare-model OTHER --compare-base FILE' computes the KL \
                       divergence of two models";

const SESSIONS: &str = "'moeflux serve --sessions N' computes N answers at a time";

const NO_CPU_LAYERS: &str = "there is no number of layers for the CPU: experts go where there is \
                             room, and '--gpu-memory SIZE' and '--memory SIZE' limit it";

const NO_LAYERS: &str = "there is no number of layers for the GPU: '--gpu-memory SIZE' limits its \
                         memory for the model, and '--backend cpu' does not use it";

const HUB: &str = "'--model OWNER/NAME:QUANT' names a model of the hub here, and asks to download \
                   what is missing";

const HUB_FILE: &str = "'moeflux pull OWNER/NAME --file FILE.gguf' downloads one file, and \
                        '--model OWNER/NAME' uses it";

/// Commands of these programs, each with a tip.
const COMMANDS: [(&str, &str); 13] = [
    (
        "run",
        "'moeflux chat --model MODEL' talks with a model, and 'moeflux generate PROMPT --model \
             MODEL' answers once",
    ),
    ("show", "'moeflux inspect MODEL' shows a model"),
    ("server", "'moeflux serve --model MODEL' serves a model"),
    ("download", "'moeflux pull OWNER/NAME[:QUANT]' downloads a model"),
    ("convert", PACK),
    ("quantize", PACK),
    ("perplexity", "'moeflux eval --model MODEL --file TEXT' computes perplexity"),
    ("ls", "'moeflux list' lists the models that are here"),
    (
        "ps",
        "a model runs as long as 'moeflux serve', 'chat' or 'generate' does; 'moeflux list' \
            lists the models that are here",
    ),
    ("cache", "'moeflux prefix' lists saved conversations, and 'moeflux list' downloaded models"),
    ("search", "'moeflux plan' lists models that run here; others are found on huggingface.co"),
    ("stop", "Ctrl-C stops 'moeflux serve'; running answers are finished first"),
    ("version", "'moeflux --version' shows the version"),
];

const PACK: &str = "'moeflux pack MODEL DIR --bits 4' quantises a model; GGUF files and folders as \
                    published run without that";

/// Commands below `prefix` as other programs name them, each with a tip.
const PREFIX_COMMANDS: [(&str, &str); 5] = [
    ("ls", "'moeflux prefix list' lists saved conversations"),
    ("rm", PRUNE),
    ("clear", PRUNE),
    ("clean", PRUNE),
    ("purge", PRUNE),
];

const PRUNE: &str = "'moeflux prefix prune --all' removes all saved conversations";

/// Commands that take the model as an option and have no positional arguments.
const MODEL_BY_OPTION: [&str; 4] = ["chat", "serve", "bench", "logits"];

/// Returns a tip on the first argument that another program would have understood. `args` are the
/// arguments after the program's name.
pub(crate) fn of(args: &[String]) -> Option<Cow<'static, str>> {
    let command = args.first()?;
    if let Some((_, tip)) = COMMANDS.iter().find(|(name, _)| name == command) {
        return Some(Cow::Borrowed(tip));
    }
    let is_by_option = MODEL_BY_OPTION.contains(&command.as_str());
    if let Some(model) = args.get(1).filter(|it| is_by_option && !it.starts_with('-')) {
        let model = OneLine::name(model);
        return Some(format!("the model is an option: 'moeflux {command} --model {model}'").into());
    }
    if let Some(tip) = of_arguments(command, args.get(1..).unwrap_or_default()) {
        return Some(tip.into());
    }
    let typed = args.iter().take_while(|arg| *arg != "--");
    let mut names = typed.map(|arg| arg.split('=').next().unwrap_or_default());
    let tip_of = |name| match name {
        "-p" | "--prompt" => prompt_of(command),
        name => OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, tip)| *tip),
    };
    names.find_map(tip_of).map(Cow::Borrowed)
}

/// Returns a tip if a model, a prompt or a text is given in the wrong place, or if the backend is
/// `cuda`.
fn of_arguments(command: &str, args: &[String]) -> Option<String> {
    let is_option = |arg: &String| arg.starts_with('-');
    match (command, args) {
        ("generate", [first, second, ..]) if !is_option(first) && !is_option(second) => {
            Some("the prompt is one argument: put it in quotes".to_owned())
        }
        ("eval", [text, ..]) if !is_option(text) => {
            Some(format!("the text is an option: 'moeflux eval --file {}'", OneLine::name(text)))
        }
        ("prefix", [first, ..]) => {
            PREFIX_COMMANDS.iter().find(|(name, _)| name == first).map(|(_, tip)| (*tip).to_owned())
        }
        ("plan" | "inspect" | "verify" | "pack" | "doctor", args) => {
            let at = args.iter().position(|arg| arg == "--model")?;
            let model = OneLine::name(args.get(at + 1)?);
            Some(format!("the model is not an option here: 'moeflux {command} {model}'"))
        }
        (_, args) if args.windows(2).any(|it| it == ["--backend", "cuda"]) => {
            Some("'--backend gpu' uses a card of any vendor and needs no CUDA".to_owned())
        }
        (model, []) if model.contains([':', '/']) => {
            Some(format!("'moeflux chat --model {}' talks with a model", OneLine::name(model)))
        }
        _ => None,
    }
}

/// Returns the tip for `-p` with this command; most have none.
fn prompt_of(command: &str) -> Option<&'static str> {
    match command {
        "generate" => Some("the prompt is not an option: 'moeflux generate PROMPT --model MODEL'"),
        "chat" => Some("a chat has no prompt: 'moeflux generate PROMPT --model MODEL' answers one"),
        "bench" => Some("'--prompt-tokens N' is the length of the prompt here"),
        "serve" => Some("'--port N' is the server's port here"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(line: &str) -> Option<Cow<'static, str>> {
        of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn names_of_other_programs_get_a_tip() {
        for (line, ours) in [
            ("generate -m x.gguf hi", "--model"),
            ("chat -c 4096", "--context"),
            ("chat --ctx-size=4096", "--context"),
            ("generate hi -ngl 99", "--gpu-memory"),
            ("serve -hf a/b", "--model OWNER/NAME:QUANT"),
            ("run a/b", "moeflux chat"),
            ("generate -p hi", "generate PROMPT"),
            ("generate hi there", "quotes"),
            ("eval text.txt", "--file text.txt"),
            ("eval --kl-divergence-base=x --file y", "--compare-base FILE"),
            ("plan --model a/b", "'moeflux plan a/b'"),
            ("qwen3:30b", "'moeflux chat --model qwen3:30b'"),
            ("generate hi --backend cuda", "--backend gpu"),
            ("bench -p 512", "--prompt-tokens"),
            ("serve -p 1234", "--port"),
            ("serve --parallel 2", "--sessions"),
            ("serve --api-key=secret", "--api-key-file"),
            ("chat --n-cpu-moe=4", "--gpu-memory"),
            ("serve --hf-file c.gguf", "moeflux pull"),
            ("show a/b", "moeflux inspect"),
            ("quantize x y", "moeflux pack"),
            ("chat qwen3:30b", "'moeflux chat --model qwen3:30b'"),
            ("prefix clear", "moeflux prefix prune"),
            ("cache list", "'moeflux prefix'"),
            ("serve a/b --port 1", "'moeflux serve --model a/b'"),
        ] {
            assert!(tip(line).unwrap_or_default().contains(ours), "{line}");
        }
    }

    #[test]
    fn our_own_names_and_texts_get_no_tip() {
        for line in [
            "",
            "generate run",
            "generate -- -m",
            "generate -n 3",
            "chat --model x",
            "plan x -p",
            "prefix list",
        ] {
            assert_eq!(tip(line), None, "{line}");
        }
    }
}
