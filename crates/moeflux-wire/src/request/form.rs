//! The required form of an answer's text, from any of the fields for it.
//!
//! These are `OpenAI`'s and Anthropic's JSON formats, vLLM's `structured_outputs` and `guided_*`,
//! and the field `grammar`. **Invariant:** a request has at most one form. Whether a schema or a
//! grammar is valid is decided when the engine's grammar is built.

use moeflux_chat::AnswerForm;
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported, wrong};

/// Maximum number of texts among which an answer must choose; classifications have fewer labels.
const N_CHOICES_MAX: usize = 1_024;

/// Names of vLLM's fields: at the top level, and inside `structured_outputs`.
const FIELDS: [(&str, &str, FormLanguage); 3] = [
    ("guided_json", "json", FormLanguage::Json),
    ("guided_regex", "regex", FormLanguage::Regex),
    ("guided_grammar", "grammar", FormLanguage::Lark),
];

/// The language in which a form is written.
#[derive(Clone, Copy, Debug)]
enum FormLanguage {
    Json,
    Regex,
    Lark,
}

/// The place of the schema in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaAt {
    /// In an object `json_schema`, as in Chat Completions.
    Nested,
    /// Next to the type, as in Responses and Messages.
    Beside,
}

/// The form that a request asks for, and the path of its field.
#[derive(Debug, Default)]
pub(crate) struct RequestedForm {
    pub(crate) found: Option<(String, AnswerForm)>,
}

impl RequestedForm {
    /// Reads the form from the fields that all dialects share.
    pub(crate) fn of(fields: &mut Fields, ignored: &mut Ignored) -> Result<Self, Failure> {
        let mut form = Self::default();
        form.grammar(fields, ignored)?;
        for (key, _, language) in FIELDS {
            form.field(fields, key, language)?;
        }
        form.choice(fields, "guided_choice")?;
        if let Some(mut outputs) = fields.object("structured_outputs")? {
            for (_, key, language) in FIELDS {
                form.field(&mut outputs, key, language)?;
            }
            form.choice(&mut outputs, "choice")?;
            if outputs.flag("json_object")? == Some(true) {
                form.set(outputs.path("json_object"), AnswerForm::JsonObject)?;
            }
            let instead = "is not supported: use `json`, `regex`, `choice` or `grammar`";
            outputs.refuse("structural_tag", instead)?;
            outputs.end(ignored);
        }
        Ok(form)
    }

    /// Adds the format from a field such as `response_format`.
    pub(crate) fn format(
        &mut self,
        fields: &mut Fields,
        (key, schema_at): (&str, SchemaAt),
        ignored: &mut Ignored,
    ) -> Result<(), Failure> {
        let Some(mut format) = fields.object(key)? else { return Ok(()) };
        let kind = format.required_string("type")?;
        match kind.as_str() {
            "text" => {}
            "json_object" if format.has("schema") => self.schema(&mut format)?,
            "json_object" => self.set(format.path("type"), AnswerForm::JsonObject)?,
            "json_schema" if schema_at == SchemaAt::Nested => {
                let mut inner = Fields::of(format.path(&kind), format.required(&kind)?)?;
                self.schema(&mut inner)?;
                inner.end(ignored);
            }
            "json_schema" => self.schema(&mut format)?,
            other => {
                let known = "use text, json_object or json_schema";
                return Err(unsupported(&format.path("type"), other, known));
            }
        }
        format.end(ignored);
        Ok(())
    }

    /// Reads the schema. Its name and strictness are ignored; a schema is always strict.
    fn schema(&mut self, format: &mut Fields) -> Result<(), Failure> {
        format.string("name")?;
        format.string("description")?;
        format.flag("strict")?;
        let path = format.path("schema");
        match format.required("schema")? {
            schema @ Json::Object(_) => self.set(path, AnswerForm::JsonSchema(schema)),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// Reads a text in Lark, or an object that names the language.
    fn grammar(&mut self, fields: &mut Fields, ignored: &mut Ignored) -> Result<(), Failure> {
        let path = fields.path("grammar");
        let mut grammar = match fields.take("grammar") {
            None => return Ok(()),
            Some(Json::String(text)) => return self.text(&path, FormLanguage::Lark, text),
            Some(json @ Json::Object(_)) => Fields::of(path, json)?,
            Some(other) => return Err(wrong(&path, "a string or an object", &other)),
        };
        let key = if grammar.has("syntax") { "syntax" } else { "type" };
        let (language, path, text) = definition(&mut grammar, key)?;
        grammar.end(ignored);
        self.text(&path, language, text)
    }

    fn field(
        &mut self,
        fields: &mut Fields,
        key: &str,
        language: FormLanguage,
    ) -> Result<(), Failure> {
        let path = fields.path(key);
        match (language, fields.take(key)) {
            (_, None) => Ok(()),
            (_, Some(Json::String(text))) => self.text(&path, language, text),
            (FormLanguage::Json, Some(schema @ Json::Object(_))) => {
                self.set(path, AnswerForm::JsonSchema(schema))
            }
            (FormLanguage::Json, Some(other)) => Err(wrong(&path, "an object", &other)),
            (_, Some(other)) => Err(wrong(&path, "a string", &other)),
        }
    }

    fn choice(&mut self, fields: &mut Fields, key: &str) -> Result<(), Failure> {
        let path = fields.path(key);
        match fields.take(key) {
            None => Ok(()),
            Some(Json::Array(choices)) => {
                let regex = one_of(&path, &choices)?;
                self.set(path, AnswerForm::Regex(regex))
            }
            Some(other) => Err(wrong(&path, "a list of strings", &other)),
        }
    }

    /// Sets a form given as text. Empty text means no form, because some clients fill in every
    /// field.
    fn text(&mut self, path: &str, language: FormLanguage, text: String) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let form = match language {
            FormLanguage::Regex => AnswerForm::Regex(text),
            FormLanguage::Lark if is_gbnf(&text) => {
                let problem = "is GBNF, which is not supported: write it in Lark";
                return Err(Failure::invalid(path, problem));
            }
            FormLanguage::Lark => AnswerForm::Lark(text),
            FormLanguage::Json => match serde_json::from_str(&text) {
                Ok(schema @ Json::Object(_)) => AnswerForm::JsonSchema(schema),
                Ok(other) => return Err(wrong(path, "an object", &other)),
                Err(error) => {
                    return Err(Failure::invalid(path, format!("is not JSON: {error}")));
                }
            },
        };
        self.set(path.to_owned(), form)
    }

    fn set(&mut self, path: String, form: AnswerForm) -> Result<(), Failure> {
        if let Some((other, _)) = &self.found {
            let problem = format!("cannot be combined with `{other}`: leave one of them out");
            return Err(Failure::invalid(&path, problem));
        }
        self.found = Some((path, form));
        Ok(())
    }
}

/// Returns the format of a custom tool's text: the regular expression or the Lark grammar that it
/// follows.
pub(crate) fn of_custom_tool(
    tool: &mut Fields,
    ignored: &mut Ignored,
) -> Result<Option<AnswerForm>, Failure> {
    let Some(mut format) = tool.object("format")? else { return Ok(None) };
    let kind = format.required_string("type")?;
    let mut grammar = match kind.as_str() {
        "text" => return Ok(None),
        // Chat Completions wrap this in one object more than Responses.
        "grammar" if format.has("grammar") => {
            Fields::of(format.path(&kind), format.required(&kind)?)?
        }
        "grammar" if format.has("syntax") => format,
        "grammar" => {
            return Err(Failure::invalid(&tool.path("format"), "needs `syntax` and `definition`"));
        }
        other => return Err(unsupported(&format.path("type"), other, "use text or grammar")),
    };
    let (language, _, text) = definition(&mut grammar, "syntax")?;
    grammar.end(ignored);
    Ok(Some(match language {
        FormLanguage::Regex => AnswerForm::Regex(text),
        FormLanguage::Json | FormLanguage::Lark => AnswerForm::Lark(text),
    }))
}

/// Returns the language of a grammar, from the field `key`, and the path and content of its text.
fn definition(grammar: &mut Fields, key: &str) -> Result<(FormLanguage, String, String), Failure> {
    let language = match grammar.required_string(key)?.as_str() {
        "lark" => FormLanguage::Lark,
        "regex" => FormLanguage::Regex,
        other => return Err(unsupported(&grammar.path(key), other, "use lark or regex")),
    };
    grammar.drop_known(&["type"]);
    let key = if grammar.has("grammar") { "grammar" } else { "definition" };
    let text = grammar.required_string(key)?;
    Ok((language, grammar.path(key), text))
}

/// Returns whether a rule is defined as in llama.cpp's grammars; Lark uses a single colon there.
fn is_gbnf(grammar: &str) -> bool {
    let is_rule = |line: &str| {
        let is_of_name = |it: char| it.is_alphanumeric() || it == '_' || it == '-';
        line.trim_start().trim_start_matches(is_of_name).trim_start().starts_with("::=")
    };
    grammar.lines().any(is_rule)
}

/// Returns a regular expression that matches any of these texts.
fn one_of(path: &str, choices: &[Json]) -> Result<String, Failure> {
    if choices.is_empty() || choices.len() > N_CHOICES_MAX {
        let problem = format!("expected 1 to {N_CHOICES_MAX} strings, got {}", choices.len());
        return Err(Failure::invalid(path, problem));
    }
    let mut regex = String::new();
    for (index, choice) in choices.iter().enumerate() {
        let Json::String(text) = choice else {
            return Err(wrong(&element(path, index), "a string", choice));
        };
        regex.push(if index == 0 { '(' } else { '|' });
        for character in text.chars() {
            if r"\.+*?()|[]{}^$#&-~".contains(character) {
                regex.push('\\');
            }
            regex.push(character);
        }
    }
    regex.push(')');
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the path and the form of a body, or the error.
    fn found(body: Json) -> Result<Option<(String, AnswerForm)>, String> {
        let mut fields = Fields::of(String::new(), body).unwrap();
        let mut ignored = Ignored::default();
        let form = RequestedForm::of(&mut fields, &mut ignored).and_then(|mut form| {
            form.format(&mut fields, ("response_format", SchemaAt::Nested), &mut ignored)?;
            form.format(&mut fields, ("format", SchemaAt::Beside), &mut ignored)?;
            Ok(form)
        });
        assert_eq!(ignored.names().count(), 0, "{ignored:?}");
        form.map(|form| form.found).map_err(|failure| failure.message)
    }

    #[track_caller]
    fn check(body: Json, path: &str, form: AnswerForm) {
        assert_eq!(found(body), Ok(Some((path.to_owned(), form))));
    }

    #[track_caller]
    fn refused(body: Json, expected: &str) {
        let problem = found(body).unwrap_err();
        assert!(problem.starts_with(expected), "{problem}");
    }

    #[test]
    fn formats_of_json() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let is = || AnswerForm::JsonSchema(schema.clone());
        for free in [json!({}), json!({"response_format": {"type": "text"}, "grammar": ""})] {
            assert_eq!(found(free), Ok(None));
        }
        let object = json!({"type": "json_object"});
        check(json!({"response_format": object}), "response_format.type", AnswerForm::JsonObject);
        let with_schema = json!({"type": "json_object", "schema": schema});
        check(json!({"response_format": with_schema}), "response_format.schema", is());
        let named = json!({"name": "n", "strict": true, "description": "d", "schema": schema});
        let nested = json!({"type": "json_schema", "json_schema": named});
        check(json!({"response_format": nested}), "response_format.json_schema.schema", is());
        let beside = json!({"type": "json_schema", "name": "n", "schema": schema});
        check(json!({"format": beside}), "format.schema", is());
        check(json!({"guided_json": schema}), "guided_json", is());
        check(json!({"guided_json": schema.to_string()}), "guided_json", is());
        check(json!({"structured_outputs": {"json": schema}}), "structured_outputs.json", is());
        let object = json!({"structured_outputs": {"json_object": true}});
        check(object, "structured_outputs.json_object", AnswerForm::JsonObject);
    }

    #[test]
    fn grammars() {
        let lark = || AnswerForm::Lark("start: /a+/".into());
        let regex = || AnswerForm::Regex("a+".into());
        check(json!({"grammar": "start: /a+/"}), "grammar", lark());
        check(json!({"guided_grammar": "start: /a+/"}), "guided_grammar", lark());
        let object = json!({"type": "lark", "grammar": "start: /a+/"});
        check(json!({"grammar": object}), "grammar.grammar", lark());
        let object = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
        check(json!({"grammar": object}), "grammar.definition", regex());
        check(json!({"guided_regex": "a+"}), "guided_regex", regex());
        check(json!({"structured_outputs": {"regex": "a+"}}), "structured_outputs.regex", regex());
        let choice = || AnswerForm::Regex(r"(a\.b|\[c\]|)".into());
        check(json!({"guided_choice": ["a.b", "[c]", ""]}), "guided_choice", choice());
        let choice_of = json!({"structured_outputs": {"choice": ["a.b", "[c]", ""]}});
        check(choice_of, "structured_outputs.choice", choice());
    }

    #[test]
    fn invalid_forms_are_refused_by_name() {
        refused(json!({"response_format": {"type": "xml"}}), "`response_format.type`: `xml` is");
        refused(json!({"response_format": {}}), "`response_format.type`: is missing");
        let bare = json!({"type": "json_schema"});
        refused(json!({"response_format": bare}), "`response_format.json_schema`: is missing");
        refused(json!({"format": bare}), "`format.schema`: is missing");
        let list = json!({"type": "json_schema", "schema": [1]});
        refused(json!({"format": list}), "`format.schema`: expected an object, got a list");
        let strict = json!({"type": "json_schema", "schema": {}, "strict": 1});
        refused(json!({"format": strict}), "`format.strict`: expected true or false, got 1");
        let gbnf = "# a list\nroot ::= item+\nitem ::= \"a\"";
        refused(json!({"grammar": gbnf}), "`grammar`: is GBNF, which is not supported");
        refused(json!({"grammar": 5}), "`grammar`: expected a string or an object, got 5");
        refused(json!({"grammar": {"type": "ebnf"}}), "`grammar.type`: `ebnf` is not supported");
        refused(json!({"grammar": {"type": "lark"}}), "`grammar.definition`: is missing");
        refused(json!({"guided_json": "{"}), "`guided_json`: is not JSON: EOF");
        refused(json!({"guided_json": "[]"}), "`guided_json`: expected an object, got a list");
        refused(json!({"guided_regex": {}}), "`guided_regex`: expected a string, got an object");
        refused(json!({"guided_choice": []}), "`guided_choice`: expected 1 to 1024 strings, got 0");
        let many = vec!["a"; N_CHOICES_MAX + 1];
        refused(json!({"guided_choice": many}), "`guided_choice`: expected 1 to 1024 strings");
        refused(json!({"guided_choice": ["a", 5]}), "`guided_choice[1]`: expected a string, got 5");
        let tag = json!({"structured_outputs": {"structural_tag": "x"}});
        refused(tag, "`structured_outputs.structural_tag`: is not supported");
    }

    #[test]
    fn two_forms_are_refused_by_both_names() {
        let format = json!({"type": "json_object"});
        let both = json!({"response_format": format, "grammar": "start: \"a\""});
        refused(both, "`response_format.type`: cannot be combined with `grammar`");
        let both = json!({"structured_outputs": {"regex": "a", "json": {}}});
        let expected = "`structured_outputs.regex`: cannot be combined with \
                        `structured_outputs.json`";
        refused(both, expected);
    }

    #[test]
    fn lark_with_colons_is_not_taken_for_gbnf() {
        for lark in ["start: \"::=\"", "a: /x/ // b ::= c", "%import common.INT\nstart: INT"] {
            assert!(!is_gbnf(lark), "{lark}");
        }
        for gbnf in ["root ::= x", "  my-rule::= x", "a:b\nroot ::=x", "::= x"] {
            assert!(is_gbnf(gbnf), "{gbnf}");
        }
    }
}
