//! The tools that an answer calls: the field `tool_choice` in the shapes of the dialects.
//!
//! **Invariant:** a tool that must or may be called is one of the offered tools, by the name that
//! the model knows.

use std::collections::BTreeSet;

use moeflux_chat::{AnswerRules, Tool, ToolChoice, ToolKind};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, shortened, unsupported, wrong};
use crate::request::tools;

const KNOWN: &str = "use auto, none, required, or an object with the name of a tool";

/// Reads the choice in `OpenAI`'s dialects. Each of them accepts the shapes of the other.
pub(crate) fn of_openai(
    fields: &mut Fields,
    tools: &[Tool],
    ignored: &mut Ignored,
) -> Result<AnswerRules, Failure> {
    let is_parallel = fields.flag("parallel_tool_calls")?;
    let path = fields.path("tool_choice");
    let (tool_choice, allowed) = match fields.take("tool_choice") {
        None => (ToolChoice::Auto, None),
        Some(Json::String(choice)) => (by_word(&path, &choice, tools)?, None),
        Some(choice @ Json::Object(_)) => by_object(Fields::of(path, choice)?, tools, ignored)?,
        Some(other) => return Err(wrong(&path, "a string or an object", &other)),
    };
    let is_one_call = !is_parallel.unwrap_or_else(|| calls_may_follow(&tool_choice));
    Ok(AnswerRules { tool_choice, allowed, is_one_call, ..AnswerRules::default() })
}

/// Returns whether an answer may have several calls if the client does not say. An answer that must
/// call can only continue with further calls, and real models then invent some.
fn calls_may_follow(tool_choice: &ToolChoice) -> bool {
    *tool_choice != ToolChoice::Required
}

/// Reads the choice in Anthropic's Messages.
pub(crate) fn of_messages(
    fields: &mut Fields,
    tools: &[Tool],
    ignored: &mut Ignored,
) -> Result<AnswerRules, Failure> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(AnswerRules::default()) };
    let path = choice.path("type");
    let tool_choice = match choice.required_string("type")?.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => required(&path, tools)?,
        "tool" => ToolChoice::Named(named(&mut choice, tools)?.to_owned()),
        other => return Err(unsupported(&path, other, "use auto, any, tool or none")),
    };
    let is_one_call = choice.flag("disable_parallel_tool_use")?;
    let is_one_call = is_one_call.unwrap_or_else(|| !calls_may_follow(&tool_choice));
    choice.end(ignored);
    Ok(AnswerRules { tool_choice, is_one_call, ..AnswerRules::default() })
}

/// Returns the tools that the model is shown: none if it may not call any.
pub(crate) fn offered(rules: &AnswerRules, tools: Vec<Tool>) -> Vec<Tool> {
    if rules.tool_choice == ToolChoice::None { Vec::new() } else { tools }
}

fn by_word(path: &str, choice: &str, tools: &[Tool]) -> Result<ToolChoice, Failure> {
    match choice {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => required(path, tools),
        other => Err(unsupported(path, other, KNOWN)),
    }
}

fn required(path: &str, tools: &[Tool]) -> Result<ToolChoice, Failure> {
    if tools.is_empty() {
        return Err(Failure::invalid(path, "needs `tools`: no tool is available"));
    }
    Ok(ToolChoice::Required)
}

/// Reads a choice in the form of an object. Chat Completions wrap the fields that Responses have
/// next to `type` in an object with the name of the type.
fn by_object(
    mut choice: Fields,
    tools: &[Tool],
    ignored: &mut Ignored,
) -> Result<(ToolChoice, Option<Vec<String>>), Failure> {
    let kind = choice.required_string("type")?;
    let found = match kind.as_str() {
        "function" | "custom" => {
            let mut inner = choice.object(&kind)?;
            let name = named(inner.as_mut().unwrap_or(&mut choice), tools)?;
            end(inner, ignored);
            (ToolChoice::Named(name.to_owned()), None)
        }
        "allowed_tools" => {
            let mut inner = choice.object(&kind)?;
            let found = allowed(inner.as_mut().unwrap_or(&mut choice), tools, ignored)?;
            end(inner, ignored);
            found
        }
        other => return Err(unsupported(&choice.path("type"), other, KNOWN)),
    };
    choice.end(ignored);
    Ok(found)
}

fn allowed(
    choice: &mut Fields,
    tools: &[Tool],
    ignored: &mut Ignored,
) -> Result<(ToolChoice, Option<Vec<String>>), Failure> {
    let mode_path = choice.path("mode");
    let mode = choice.required_string("mode")?;
    let path = choice.path("tools");
    let (mut names, mut known) = (Vec::new(), BTreeSet::new());
    for (index, tool) in tools::list_of(choice, &path)?.into_iter().enumerate() {
        for name in members(Fields::of(element(&path, index), tool)?, tools, ignored)? {
            if known.insert(name) {
                names.push(name.to_owned());
            }
        }
    }
    let allowed = match mode.as_str() {
        "auto" if names.is_empty() => return Ok((ToolChoice::None, None)),
        "required" if names.is_empty() => {
            return Err(Failure::invalid(&path, "names no tool that could be called"));
        }
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        other => return Err(unsupported(&mode_path, other, "use auto or required")),
    };
    Ok((allowed, Some(names)))
}

/// Returns the names in an entry of allowed tools: a single one, or those of a namespace.
fn members<'a>(
    mut entry: Fields,
    tools: &'a [Tool],
    ignored: &mut Ignored,
) -> Result<Vec<&'a str>, Failure> {
    let kind = entry.required_string("type")?;
    match kind.as_str() {
        "function" | "custom" => {
            let mut inner = entry.object(&kind)?;
            Ok(vec![named(inner.as_mut().unwrap_or(&mut entry), tools)?])
        }
        "namespace" => {
            let path = entry.path("name");
            let group = entry.required_string("name")?;
            let is_member = |tool: &&Tool| match &tool.kind {
                ToolKind::Member { namespace, .. } => *namespace == group,
                _ => false,
            };
            let names: Vec<&str> =
                tools.iter().filter(is_member).map(|tool| tool.name.as_str()).collect();
            if names.is_empty() { Err(no_such(&path, &group)) } else { Ok(names) }
        }
        // Tools that run on the servers of the client's vendor.
        _ => {
            ignored.add(&format!("{}={kind}", entry.path("type")));
            Ok(Vec::new())
        }
    }
}

/// Returns the name that the model knows for the tool given by `name` and possibly `namespace`.
fn named<'a>(choice: &mut Fields, tools: &'a [Tool]) -> Result<&'a str, Failure> {
    let path = choice.path("name");
    let name = choice.required_string("name")?;
    let group = choice.string("namespace")?;
    let same = tools.iter().find(|tool| group.is_none() && tool.name == name);
    if let Some(tool) = same {
        return Ok(&tool.name);
    }
    let is_meant = |tool: &&Tool| match &tool.kind {
        ToolKind::Member { namespace, name: member, .. } => {
            *member == name && group.as_ref().is_none_or(|group| group == namespace)
        }
        _ => false,
    };
    let mut meant = tools.iter().filter(is_meant);
    match (meant.next(), meant.next()) {
        (None, _) => Err(no_such(&path, &name)),
        (Some(only), None) => Ok(&only.name),
        (Some(_), Some(_)) => {
            let problem = format!("`{}` is in several groups: add `namespace`", shortened(&name));
            Err(Failure::invalid(&path, problem))
        }
    }
}

fn end(inner: Option<Fields>, ignored: &mut Ignored) {
    if let Some(inner) = inner {
        inner.end(ignored);
    }
}

fn no_such(path: &str, name: &str) -> Failure {
    Failure::invalid(path, format!("`{}` is not one of the `tools`", shortened(name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools() -> Vec<Tool> {
        let function = |name: &str| Tool::function(name.into(), None, None);
        vec![
            function("f"),
            Tool::custom("patch".into(), None),
            function("close").member_of("agents"),
            function("run").member_of("agents"),
            Tool::custom("run".into(), None).member_of("shell"),
        ]
    }

    type Found = (ToolChoice, Option<Vec<String>>);

    /// Returns the choice and the allowed tools, or the error.
    fn openai(choice: Json, tools: &[Tool]) -> Result<Found, String> {
        let mut fields = Fields::of(String::new(), json!({"tool_choice": choice})).unwrap();
        let rules = of_openai(&mut fields, tools, &mut Ignored::default());
        let rules = rules.map_err(|failure| failure.message)?;
        assert_eq!(rules.is_one_call, rules.tool_choice == ToolChoice::Required);
        Ok((rules.tool_choice, rules.allowed))
    }

    #[track_caller]
    fn check(choice: Json, expected: ToolChoice, allowed: &[&str]) {
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let allowed = Some(allowed).filter(|names| !names.is_empty());
        assert_eq!(openai(choice, &tools()), Ok((expected, allowed)));
    }

    #[track_caller]
    fn refused(choice: Json, expected: &str) {
        let problem = openai(choice, &tools()).unwrap_err();
        assert!(problem.starts_with(expected), "{problem}");
    }

    fn call(name: &str) -> ToolChoice {
        ToolChoice::Named(name.into())
    }

    #[test]
    fn choices_of_openai() {
        check(Json::Null, ToolChoice::Auto, &[]);
        check(json!("auto"), ToolChoice::Auto, &[]);
        check(json!("none"), ToolChoice::None, &[]);
        check(json!("required"), ToolChoice::Required, &[]);
        check(json!({"type": "function", "function": {"name": "f"}}), call("f"), &[]);
        check(json!({"type": "function", "name": "f"}), call("f"), &[]);
        check(json!({"type": "custom", "custom": {"name": "patch"}}), call("patch"), &[]);
        check(json!({"type": "custom", "name": "patch"}), call("patch"), &[]);
        check(json!({"type": "function", "name": "close"}), call("agents__close"), &[]);
        check(json!({"type": "function", "name": "agents__close"}), call("agents__close"), &[]);
        let in_group = json!({"type": "custom", "name": "run", "namespace": "shell"});
        check(in_group, call("shell__run"), &[]);
    }

    #[test]
    fn some_of_the_tools_are_allowed() {
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        let nested = |mode: &str, tools: Json| {
            let allowed = json!({"mode": mode, "tools": tools});
            json!({"type": "allowed_tools", "allowed_tools": allowed})
        };
        check(nested("auto", json!([named("f"), named("f")])), ToolChoice::Auto, &["f"]);
        check(nested("required", json!([named("patch")])), ToolChoice::Required, &["patch"]);
        check(nested("auto", json!([])), ToolChoice::None, &[]);
        let kind = "allowed_tools";
        let beside = |mode: &str, tools: Json| json!({"type": kind, "mode": mode, "tools": tools});
        let list = json!([{"type": "mcp", "server_label": "x"}, {"type": "function", "name": "f"},
            {"type": "namespace", "name": "agents"}]);
        let names = ["f", "agents__close", "agents__run"];
        check(beside("auto", list), ToolChoice::Auto, &names);
        refused(beside("any", json!([named("f")])), "`tool_choice.mode`: `any` is not supported");
        refused(beside("required", json!([{"type": "mcp"}])), "`tool_choice.tools`: names no tool");
        let unknown = beside("auto", json!([named("f"), named("g")]));
        refused(unknown, "`tool_choice.tools[1].function.name`: `g` is not one of the `tools`");
        let unknown = beside("auto", json!([{"type": "namespace", "name": "g"}]));
        refused(unknown, "`tool_choice.tools[0].name`: `g` is not one of the `tools`");
    }

    #[test]
    fn choices_without_a_tool_are_refused() {
        refused(json!("always"), "`tool_choice`: `always` is not supported: use auto, none");
        refused(json!(5), "`tool_choice`: expected a string or an object, got 5");
        refused(json!({}), "`tool_choice.type`: is missing");
        refused(json!({"type": "web_search"}), "`tool_choice.type`: `web_search` is not");
        refused(json!({"type": "function"}), "`tool_choice.name`: is missing");
        let unknown = json!({"type": "function", "function": {"name": "g"}});
        refused(unknown, "`tool_choice.function.name`: `g` is not one of the `tools`");
        let run = json!({"type": "function", "name": "run"});
        refused(run, "`tool_choice.name`: `run` is in several groups: add `namespace`");
        let run = json!({"type": "function", "name": "run", "namespace": "x"});
        refused(run, "`tool_choice.name`: `run` is not one of the `tools`");
        let problem = openai(json!("required"), &[]).unwrap_err();
        assert_eq!(problem, "`tool_choice`: needs `tools`: no tool is available");
        let problem = openai(json!({"type": "function", "name": "f"}), &[]).unwrap_err();
        assert_eq!(problem, "`tool_choice.name`: `f` is not one of the `tools`");
    }

    #[test]
    fn choices_of_anthropic() {
        let found = |choice: Json, tools: &[Tool]| {
            let mut fields = Fields::of(String::new(), json!({"tool_choice": choice})).unwrap();
            let rules = of_messages(&mut fields, tools, &mut Ignored::default());
            rules.map(|it| (it.tool_choice, it.is_one_call)).map_err(|it| it.message)
        };
        let choice = |choice: Json| found(choice, &tools());
        assert_eq!(choice(Json::Null), Ok((ToolChoice::Auto, false)));
        assert_eq!(choice(json!({"type": "none"})), Ok((ToolChoice::None, false)));
        let one = json!({"type": "auto", "disable_parallel_tool_use": true});
        assert_eq!(choice(one), Ok((ToolChoice::Auto, true)));
        let one = json!({"type": "any", "disable_parallel_tool_use": true});
        assert_eq!(choice(one), Ok((ToolChoice::Required, true)));
        assert_eq!(choice(json!({"type": "any"})), Ok((ToolChoice::Required, true)));
        let several = json!({"type": "any", "disable_parallel_tool_use": false});
        assert_eq!(choice(several), Ok((ToolChoice::Required, false)));
        assert_eq!(choice(json!({"type": "tool", "name": "f"})), Ok((call("f"), false)));
        let problem = found(json!({"type": "any"}), &[]).unwrap_err();
        assert_eq!(problem, "`tool_choice.type`: needs `tools`: no tool is available");
        let problem = choice(json!({"type": "tool", "name": "g"})).unwrap_err();
        assert_eq!(problem, "`tool_choice.name`: `g` is not one of the `tools`");
        let problem = choice(json!({"type": "function"})).unwrap_err();
        assert!(problem.starts_with("`tool_choice.type`: `function` is not supported"));
        let wrong = json!({"type": "any", "disable_parallel_tool_use": 1});
        let problem = choice(wrong).unwrap_err();
        assert!(problem.starts_with("`tool_choice.disable_parallel_tool_use`: expected true"));
    }

    #[test]
    fn one_call_at_most() {
        let one_call_of = |body: Json| {
            let mut fields = Fields::of(String::new(), body).unwrap();
            let rules = of_openai(&mut fields, &tools(), &mut Ignored::default());
            rules.map(|rules| rules.is_one_call).map_err(|failure| failure.message)
        };
        let is_one_call = |value: Json| one_call_of(json!({"parallel_tool_calls": value}));
        let forced = |value: Json| {
            one_call_of(json!({"parallel_tool_calls": value, "tool_choice": "required"}))
        };
        assert_eq!(forced(Json::Null), Ok(true));
        assert_eq!(forced(json!(true)), Ok(false));
        assert_eq!(is_one_call(Json::Null), Ok(false));
        assert_eq!(is_one_call(json!(true)), Ok(false));
        assert_eq!(is_one_call(json!(false)), Ok(true));
        let problem = is_one_call(json!("no")).unwrap_err();
        assert_eq!(problem, "`parallel_tool_calls`: expected true or false, got a string");
    }
}
