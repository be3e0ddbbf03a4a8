//! Calls a tool, gives the model its result, and asks for an answer that follows a JSON schema.

#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::error::Error;
use std::io::Write as _;

use moeflux::sample::SamplerConfig;
use moeflux::{Engine, Model, Session};
use moeflux_chat::{
    AnswerForm, AnswerPart, AnswerRules, Assistant, Chat, ChatOptions, Conversation, Tool,
    ToolChoice, ToolResult, Turn,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let chat = Chat::open(&model)?;
    let engine = Engine::builder(model).load()?;
    let mut session = engine.session(1024)?;

    let parameters = json!({"type": "object", "properties": {"name": {"type": "string"}},
        "required": ["name"]});
    let tool = Tool::function("look_up".into(), Some("Looks up a type".into()), Some(parameters));
    let mut conversation = Conversation::new("Look up what a Vec is.");
    conversation.tools.push(tool);
    let rules = AnswerRules { tool_choice: ToolChoice::Required, ..AnswerRules::default() };
    let said = ask(&chat, &mut session, (&conversation, &rules))?;

    for call in &said.calls {
        let text = "a contiguous array type that can grow".to_owned();
        let result = ToolResult { call_id: call.id.clone(), name: None, text };
        conversation.turns.extend([Turn::Assistant(said.clone()), Turn::Tool(result)]);
    }
    let schema = json!({"type": "object", "properties": {"is_growable": {"type": "boolean"}},
        "required": ["is_growable"], "additionalProperties": false});
    let form = AnswerForm::JsonSchema(schema);
    let rules = AnswerRules { form, tool_choice: ToolChoice::None, ..AnswerRules::default() };
    ask(&chat, &mut session, (&conversation, &rules))?;
    Ok(())
}

/// Asks for the next answer of a conversation, and prints it as it arrives.
fn ask(
    chat: &Chat,
    session: &mut Session,
    (conversation, rules): (&Conversation, &AnswerRules),
) -> Result<Assistant, Box<dyn Error>> {
    let prompt = chat.ask(conversation, rules, &ChatOptions::default())?;
    let mut parts = chat.answer(&prompt, session, (SamplerConfig::greedy(), 64))?;
    for part in &mut parts {
        match part? {
            AnswerPart::Text(text) => print!("{text}"),
            AnswerPart::CallEnded { name, arguments, .. } => print!("{name}({arguments})"),
            _ => {}
        }
        std::io::stdout().flush()?;
    }
    println!();
    let answer = parts.finished();
    // The next prompt then begins with the tokens that were sampled.
    answer.kept.into_iter().for_each(|kept| chat.keep(kept));
    Ok(answer.said)
}
