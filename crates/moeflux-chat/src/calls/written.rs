//! Writes calls as templates do.
//!
//! **Invariant:** the text is that of a template of the format, and reading it returns the calls.

use serde_json::Value as Json;

use crate::calls::format::{ArgumentsForm, CallFormat, Scalars, Tags};
use crate::calls::history::{named_id, python_json};
use crate::conversation::Call;

impl CallFormat {
    /// Writes the calls of a turn, without the text before them; `None` if there are none.
    /// `n_before` is the number of earlier calls in the conversation.
    #[must_use]
    pub(crate) fn written(&self, calls: &[Call], n_before: usize) -> Option<String> {
        let texts = calls.iter().zip(n_before..);
        let texts: Vec<String> = texts.map(|(call, call_idx)| self.one(call, call_idx)).collect();
        let between = texts.join(self.between_calls);
        let text = format!("{}{between}{}", self.before_calls, self.after_calls);
        (!texts.is_empty()).then_some(text)
    }

    fn one(&self, call: &Call, call_idx: usize) -> String {
        let mut text = self.before_call.to_owned();
        match self.id_prefix() {
            Some(prefix) => text.push_str(&named_id(prefix, call, call_idx)),
            None => text.extend([self.before_name, &call.name]),
        }
        text.push_str(self.after_name);
        match self.arguments {
            ArgumentsForm::Json => {
                text.push_str(&python_json(&Json::Object(call.arguments.clone())));
            }
            ArgumentsForm::Tagged(tags) => {
                for (key, value) in &call.arguments {
                    let after_key =
                        if value.is_string() { tags.after_key } else { tags.after_json_key };
                    let value = tagged(value, tags);
                    text.extend([tags.before_key, key, after_key, &value, tags.after_value]);
                }
                text.push_str(if call.arguments.is_empty() { tags.no_parameters } else { "" });
            }
        }
        text + self.after_arguments + self.after_call
    }
}

fn tagged(value: &Json, tags: Tags) -> String {
    match (value, tags.scalars) {
        (Json::String(text), _) => text.clone(),
        (Json::Null, Scalars::Python) => "None".to_owned(),
        (Json::Bool(true), Scalars::Python) => "True".to_owned(),
        (Json::Bool(false), Scalars::Python) => "False".to_owned(),
        _ => python_json(value),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use moeflux::provider::text::{SpecialTokens, TemplateOptions};
    use moeflux::{ChatTemplate, Message};
    use serde_json::json;

    use super::*;
    use crate::answer_reader::{AnswerReader, AnswerStart};
    use crate::calls::format::NameForm;
    use crate::conversation::Tool;
    use crate::piece::AnswerPiece;
    use crate::thoughts::{HARMONY, THINK};

    /// The calls of version 3.1 of a template, in this project's own wording.
    const DEEPSEEK_V3_1: &str = "<｜Assistant｜>{% for call in messages[0].tool_calls %}\
        {% if loop.first %}<｜tool▁calls▁begin｜>{% endif %}<｜tool▁call▁begin｜>\
        {{ call.function.name }}<｜tool▁sep｜>{{ call.function.arguments }}<｜tool▁call▁end｜>\
        {% endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    const TEMPLATES: [(&str, &str); 10] = [
        ("qwen3", include_str!("../../../moeflux/src/text/template/cases/qwen3.jinja")),
        ("qwen3_5", include_str!("../../../moeflux/src/text/template/cases/qwen3_5.jinja")),
        ("deepseek_v3", include_str!("../../../moeflux/src/text/template/cases/deepseek_v3.jinja")),
        ("deepseek_v3_1", DEEPSEEK_V3_1),
        (
            "deepseek_v3_2",
            include_str!("../../../moeflux/src/text/template/own/deepseek_v32.jinja"),
        ),
        ("kimi_k2", include_str!("../../../moeflux/src/text/template/cases/kimi_k2.jinja")),
        ("glm4_moe", include_str!("../../../moeflux/src/text/template/cases/glm4_moe.jinja")),
        ("minimax_m2", include_str!("../../../moeflux/src/text/template/cases/minimax_m2.jinja")),
        ("hunyuan_3", include_str!("../../../moeflux/src/text/template/cases/hunyuan_3.jinja")),
        ("llama3", include_str!("../../../moeflux/src/text/template/cases/llama3.jinja")),
    ];

    fn calls() -> Vec<Call> {
        let arguments =
            json!({"text": "a\n\"b\" é </x> {}", "n": [1, -2.5, {"k": null}], "on": true});
        let Json::Object(arguments) = arguments else { unreachable!() };
        let call =
            |id: &str, name: &str, arguments| Call { id: id.into(), name: name.into(), arguments };
        vec![
            call("functions.f:0", "f", arguments),
            call("functions.g_2:1", "g_2", serde_json::Map::new()),
        ]
    }

    /// Creates a reader of answers that begin with calls.
    fn reader(format: &CallFormat) -> AnswerReader {
        match format.title {
            "harmony" => AnswerReader::new(AnswerStart::Open, &HARMONY),
            _ => AnswerReader::new(AnswerStart::Text, &THINK),
        }
    }

    /// Returns the text that the template writes for a turn of the assistant with these calls.
    fn rendered(template: &ChatTemplate, calls: &[Call], arguments_as_text: bool) -> String {
        let mut message = Message::new("assistant", "");
        if arguments_as_text {
            message.content = Json::Null;
        }
        let call = |call: &Call| {
            let arguments = Json::Object(call.arguments.clone());
            let arguments =
                if arguments_as_text { python_json(&arguments).into() } else { arguments };
            let function = json!({"name": call.name, "arguments": arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message.tool_calls = Some(calls.iter().map(call).collect());
        let options = TemplateOptions { now_seconds: Some(0), ..TemplateOptions::default() };
        template.render(&[message], &options).unwrap()
    }

    #[test]
    fn written_calls_match_those_of_templates() {
        for (name, source) in TEMPLATES {
            let path = Path::new("t.jinja");
            let special = SpecialTokens::default();
            let template = ChatTemplate::from_source(path, source, special).unwrap();
            let format = CallFormat::of(&template).unwrap();
            let as_text = ["deepseek_v3", "deepseek_v3_1"].contains(&name);
            // These templates omit the arguments of all calls but the first, or take only one.
            let n_calls = if ["deepseek_v3", "llama3"].contains(&name) { 1 } else { 2 };
            let calls = &calls()[..n_calls];
            let rendered = rendered(&template, calls, as_text);
            let written = format.written(calls, 0).unwrap();
            assert!(rendered.contains(&written), "{name}: {rendered}\n{written}");
        }
    }

    #[test]
    fn written_calls_are_read_back() {
        let schema = json!({"properties": {"text": {"type": "string"}, "on": {"type": "boolean"}}});
        let tool = |name: &str| Tool::function(name.into(), None, Some(schema.clone()));
        let tools = [tool("f"), tool("g_2")];
        for format in CallFormat::all() {
            let mut reader = reader(format).with_calls(format, &tools);
            let mut pieces = reader.push(&format.written(&calls(), 0).unwrap());
            pieces.extend(reader.finish());
            let mut read: Vec<(String, String)> = Vec::new();
            for piece in pieces {
                match piece {
                    AnswerPiece::Call { name, .. } => read.push((name, String::new())),
                    AnswerPiece::Arguments(text) => read.last_mut().unwrap().1.push_str(&text),
                    AnswerPiece::CallEnd => {}
                    other => panic!("{}: {other:?}", format.title),
                }
            }
            let read: Vec<Call> = read
                .iter()
                .zip(calls())
                .map(|((name, arguments), call)| Call::from_text(call.id, name.clone(), arguments))
                .collect();
            assert_eq!(read, calls(), "{}", format.title);
        }
    }

    #[test]
    fn names_of_python_are_read_where_they_are_written() {
        let schema = json!({"properties": {
            "either": {"type": ["boolean", "string"]}, "maybe": {"type": ["string", "null"]},
        }});
        let tools = [Tool::function("f".into(), None, Some(schema))];
        for format in CallFormat::all() {
            let is_python = match format.arguments {
                ArgumentsForm::Json => false,
                ArgumentsForm::Tagged(tags) => tags.scalars == Scalars::Python,
            };
            let maybe = if is_python { Json::Null } else { "None".into() };
            let written =
                json!({"either": false, "maybe": maybe, "other": [true], "on": true, "no": null});
            let Json::Object(arguments) = written.clone() else { unreachable!() };
            let call = Call { id: "functions.f:0".into(), name: "f".into(), arguments };
            let mut reader = reader(format).with_calls(format, &tools);
            let mut pieces = reader.push(&format.written(&[call], 0).unwrap());
            pieces.extend(reader.finish());
            let text =
                |piece| if let AnswerPiece::Arguments(text) = piece { text } else { String::new() };
            let read: String = pieces.into_iter().map(text).collect();
            assert_eq!(serde_json::from_str::<Json>(&read).unwrap(), written, "{}", format.title);
        }
    }

    #[test]
    fn ids_that_do_not_show_the_name_are_replaced() {
        let format = CallFormat::all().find(|it| it.name == NameForm::Numbered).unwrap();
        let id_of = |id: &str| {
            let call = Call { id: id.into(), ..calls().remove(0) };
            let text = format.written(&[call], 5).unwrap();
            text.split(['>', '<']).find(|it| it.contains("functions")).unwrap().to_owned()
        };
        assert_eq!(id_of("functions.f:12"), "functions.f:12");
        for other in ["call_1", "functions.g:0", "functions.f:", "functions.f:1x", ""] {
            assert_eq!(id_of(other), "functions.f:5", "{other}");
        }
        assert_eq!(format.written(&[], 0), None);
    }
}
