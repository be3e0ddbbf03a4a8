//! Prints an answer that may call a tool, and one that follows a JSON schema, part by part.

#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::error::Error;
use std::io::Write as _;

use moeflux::sample::SamplerConfig;
use moeflux::{Engine, Model};
use moeflux_chat::{
    AnswerForm, AnswerPart, AnswerRules, Chat, ChatOptions, Conversation, Tool, ToolChoice,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let chat = Chat::open(&model)?;
    let engine = Engine::builder(model).load()?;
    let parameters = json!({"type": "object", "properties": {"name": {"type": "string"}},
        "required": ["name"]});
    let tool = Tool::function("look_up".into(), Some("Looks up a type".into()), Some(parameters));
    let mut conversation = Conversation::new("Look up what a Vec is.");
    conversation.tools.push(tool);
    let call = AnswerRules { tool_choice: ToolChoice::Required, ..AnswerRules::default() };
    let schema = json!({"type": "object", "properties": {"is_growable": {"type": "boolean"}},
        "required": ["is_growable"], "additionalProperties": false});
    let form = AnswerForm::JsonSchema(schema);
    let form = AnswerRules { form, tool_choice: ToolChoice::None, ..AnswerRules::default() };
    for rules in [call, form] {
        let prompt = chat.ask(&conversation, &rules, &ChatOptions::default())?;
        let mut session = engine.session(1024)?;
        for part in chat.answer(&prompt, &mut session, (SamplerConfig::greedy(), 64))? {
            match part? {
                AnswerPart::Text(text) => print!("{text}"),
                AnswerPart::CallEnded { name, arguments, .. } => print!("{name}({arguments})"),
                _ => {}
            }
            std::io::stdout().flush()?;
        }
        println!();
    }
    Ok(())
}
