//! Recorded conversations through the chat templates of five families: none is refused.

use std::path::Path;

use moeflux::ChatTemplate;
use moeflux::provider::text::SpecialTokens;
use moeflux_chat::{AnswerStart, ChatFormat, Conversation, Ending, Turn};
use moeflux_wire::Prompt;

use crate::dialects::parse;
use crate::recorded::requests;

const TEMPLATES: [(&str, &str); 5] = [
    ("qwen3", include_str!("../../../moeflux/src/text/template/cases/qwen3.jinja")),
    ("qwen3_5", include_str!("../../../moeflux/src/text/template/cases/qwen3_5.jinja")),
    ("deepseek_v3", include_str!("../../../moeflux/src/text/template/cases/deepseek_v3.jinja")),
    ("kimi_k2", include_str!("../../../moeflux/src/text/template/cases/kimi_k2.jinja")),
    ("glm4_moe", include_str!("../../../moeflux/src/text/template/cases/glm4_moe.jinja")),
];

/// Texts of system and user turns; these stand in every prompt.
fn texts(conversation: &Conversation) -> impl Iterator<Item = &str> {
    conversation.turns.iter().filter_map(|turn| match turn {
        Turn::System(text) | Turn::User(text) => Some(text.trim()),
        _ => None,
    })
}

#[test]
fn conversations_of_clients_become_prompts_of_every_family() {
    let mut n_prompts = 0;
    for (template, source) in TEMPLATES {
        let template_path = Path::new(template);
        let compiled =
            ChatTemplate::from_source(template_path, source, SpecialTokens::default()).unwrap();
        let format = ChatFormat::new(compiled);
        for (name, api, body) in requests() {
            let Ok(Some(request)) = parse(&api, &body) else { continue };
            let Prompt::Chat(conversation, mut options) = request.prompt else { continue };
            options.variables.insert("bos_token".into(), "<s>".into());
            let prompt = format.prompt(&conversation, &options).unwrap_or_else(|error| {
                panic!("{template} refuses {name}: {error}");
            });
            n_prompts += 1;
            for text in texts(&conversation) {
                assert!(prompt.text.contains(text), "{template} leaves out of {name}: {text}");
            }
            if conversation.ending == Ending::Continue {
                assert!(prompt.text.ends_with("Because"), "{template}: {name}: {}", prompt.text);
                assert_eq!(prompt.start, AnswerStart::Text, "{template}: {name}");
            }
        }
    }
    assert!(n_prompts >= 5 * 15, "{n_prompts}");
}
