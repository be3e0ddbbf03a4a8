//! Calls in each format: names, arguments, several calls, and surrounding text.

use serde_json::json;

use super::*;

fn tools() -> Vec<Tool> {
    let get = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]}, "exact": {"type": "boolean"},
        },
        "required": ["city"],
    });
    vec![
        Tool::function("get".into(), None, Some(get)),
        Tool::function("get_all".into(), None, None),
    ]
}

fn format(title: &str) -> &'static CallFormat {
    CallFormat::all().find(|it| it.title == title).unwrap()
}

/// Returns models with the markers of the format as special tokens, as visible tokens, and as text.
fn models(format: &CallFormat) -> [Arc<ModelText>; 3] {
    let mut markers: Vec<&str> = format.markers().collect();
    markers.sort_unstable();
    markers.dedup();
    [model_of(&markers, &[]), model_of(&[], &markers), model_of(&[], &[])]
}

fn constraint(
    model: &Arc<ModelText>,
    format: &'static CallFormat,
    rules: &AnswerRules,
) -> Constraint {
    let grammars = Grammars::new(model.clone(), Some(format));
    grammars.constraint(rules, &tools(), AnswerStart::Text).unwrap().unwrap()
}

fn rules(tool_choice: ToolChoice) -> AnswerRules {
    AnswerRules { tool_choice, ..AnswerRules::default() }
}

/// A call in each format with two arguments, and one without.
const WRITTEN: [(&str, &str, &str); 12] = [
    (
        "hermes",
        "<tool_call>\n\
         {\"name\": \"get\", \"arguments\": {\"city\": \"<B>\", \"exact\": true}}\n\
         </tool_call>",
        "<tool_call>\n{\"name\": \"get_all\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "qwen_xml",
        "<tool_call>\n<function=get>\n<parameter=city>\n<B>\n</parameter>\n\
         <parameter=exact>\ntrue\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_all>\n</function>\n</tool_call>",
    ),
    (
        "qwen_xml_python",
        "<tool_call>\n<function=get>\n<parameter=city>\n<B>\n</parameter>\n\
         <parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_all>\n</function>\n</tool_call>",
    ),
    (
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n\
         {\"city\": \"<B>\", \"exact\": true}\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_all\n```json\n{}\n```<｜tool▁call▁end｜>",
    ),
    (
        "deepseek_v3_1",
        "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"city\": \"<B>\", \"exact\": true}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>get_all<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    ),
    (
        "deepseek_v3_2",
        "<｜DSML｜invoke name=\"get\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\"><B></｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"exact\" string=\"false\">true</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n",
        "<｜DSML｜invoke name=\"get_all\">\n\n</｜DSML｜invoke>\n",
    ),
    (
        "kimi_k2",
        "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>\
         {\"city\": \"<B>\", \"exact\": true}<|tool_call_end|>",
        "<|tool_call_begin|>functions.get_all:12<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    (
        "glm_4_5",
        "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value><B></arg_value>\n\
         <arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
        "<tool_call>get_all\n</tool_call>",
    ),
    (
        "glm_4_7",
        "<tool_call>get<arg_key>city</arg_key><arg_value><B></arg_value>\
         <arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>",
        "<tool_call>get_all</tool_call>",
    ),
    (
        "minimax_m2",
        "<invoke name=\"get\">\n<parameter name=\"city\"><B></parameter>\n\
         <parameter name=\"exact\">true</parameter>\n</invoke>\n",
        "<invoke name=\"get_all\">\n</invoke>\n",
    ),
    (
        "hunyuan_3",
        "<tool_call:opensource>get<tool_sep:opensource>\n\
         <arg_key:opensource>city</arg_key:opensource>\n\
         <arg_value:opensource><B></arg_value:opensource>\n\
         <arg_key:opensource>exact</arg_key:opensource>\n\
         <arg_value:opensource>true</arg_value:opensource>\n</tool_call:opensource>\n",
        "<tool_call:opensource>get_all<tool_sep:opensource>\n</tool_call:opensource>\n",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.get <|constrain|>json<|message|>\
         {\"city\": \"<B>\", \"exact\": true}<|call|>",
        "<|channel|>commentary to=functions.get_all <|constrain|>json<|message|>{}<|call|>",
    ),
];

fn turn(format: &CallFormat, calls: &[&str]) -> String {
    format!("{}{}{}", format.before_calls, calls.join(format.between_calls), format.after_calls)
}

#[track_caller]
fn check_text(constraint: &mut Constraint, model: &ModelText, text: &str, is_whole: bool) {
    let tokens = model.tokenizer().encode(text).unwrap();
    let found = offer(constraint, &tokens, N_LOGITS);
    assert_eq!(found == Fate::Whole, is_whole, "{text}: {found:?}");
}

#[test]
fn calls_of_offered_tools_are_taken_in_every_format() {
    for (title, one, other) in WRITTEN {
        let format = format(title);
        for model in models(format) {
            for choice in [ToolChoice::Auto, ToolChoice::Required] {
                let is_auto = choice == ToolChoice::Auto;
                let rules = rules(choice);
                let check = |text: &str, is_whole| {
                    check_text(&mut constraint(&model, format, &rules), &model, text, is_whole);
                };
                check(&turn(format, &[one]), true);
                check(&turn(format, &[other]), true);
                let third = one.replacen("<B>", "<C>", 1);
                check(&turn(format, &[one, other, &third]), true);
                check("Just text.", is_auto);
                check(&format!("Text.{}{}", format.after_text, turn(format, &[one])), is_auto);
                let changes = [("get", "got"), ("city", "town"), ("true", "1"), ("True", "1")];
                for (from, to) in changes.iter().filter(|(from, _)| one.contains(from)) {
                    check(&turn(format, &[&one.replacen(from, to, 1)]), false);
                }
                let cut = &one[..one.len() - format.after_call.len()];
                check(&format!("{}{cut}", format.before_calls), false);
            }
        }
    }
}

#[test]
fn a_choice_of_tools_is_held() {
    for (title, one, other) in WRITTEN {
        let format = format(title);
        for model in models(format) {
            let check = |rules: &AnswerRules, text: &str, is_whole| {
                check_text(&mut constraint(&model, format, rules), &model, text, is_whole);
            };
            let named = rules(ToolChoice::Named("get_all".into()));
            check(&named, &turn(format, &[other]), true);
            check(&named, &turn(format, &[one]), false);
            let none = rules(ToolChoice::None);
            check(&none, "a < b, <tool", true);
            check(&none, &turn(format, &[one]), false);
            for choice in [ToolChoice::Auto, ToolChoice::Required] {
                let one_call = AnswerRules { is_one_call: true, ..rules(choice) };
                check(&one_call, &turn(format, &[one]), true);
                check(&one_call, &turn(format, &[one, other]), false);
            }
        }
    }
}

#[test]
fn a_demanded_call_begins_with_forced_tokens() {
    for (title, ..) in WRITTEN {
        let format = format(title);
        for model in models(format) {
            let required = rules(ToolChoice::Required);
            let tokens = forced(&mut constraint(&model, format, &required));
            let text = text_of(&model, &tokens);
            let expected =
                format!("{}{}{}get", format.before_calls, format.before_call, format.before_name);
            assert_eq!(text, expected);
            assert_eq!(tokens, model.tokenizer().encode(&expected).unwrap());
            let free = rules(ToolChoice::Auto);
            assert_eq!(forced(&mut constraint(&model, format, &free)), []);
        }
    }
}

#[test]
fn arguments_follow_their_schema() {
    let model = model_of(&[], &[]);
    let check_all = |title: &str, wrap: &dyn Fn(&str) -> String, cases: &[(&str, bool)]| {
        for (arguments, is_whole) in cases {
            let rules = rules(ToolChoice::Required);
            let text = wrap(arguments);
            check_text(&mut constraint(&model, format(title), &rules), &model, &text, *is_whole);
        }
    };
    let json = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"get\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    check_all(
        "hermes",
        &json,
        &[
            (r#"{"city": "A", "days": 3, "unit": "F", "exact": false}"#, true),
            (r#"{"city": "</tool_call> \" { \u001b"}"#, true),
            ("{\n  \"city\": \"A\"\n}", true),
            ("{}", false),
            (r#"{"city": "A", "days": "3"}"#, false),
            (r#"{"city": "A", "unit": "K"}"#, false),
            (r#"{"city": "A", "other": 1}"#, false),
            (r#"{"days": 3, "city": "A"}"#, false),
        ],
    );
    let parameter =
        |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let xml = |arguments: &str| {
        format!("<tool_call>\n<function=get>\n{arguments}</function>\n</tool_call>")
    };
    let city = |value: &str| parameter("city", value);
    let with = |name: &str, value: &str| city("A") + &parameter(name, value);
    check_all(
        "qwen_xml",
        &xml,
        &[
            (&city(""), true),
            (&city("123"), true),
            (&city("two\nlines\n\n<parameter=x> </function> \"\u{1f600}"), true),
            (&city("</parameter>"), false),
            (&with("days", "3"), true),
            (&with("days", "three"), false),
            (&with("days", "\"3\""), false),
            (&with("unit", "C"), true),
            (&with("unit", "\"C\""), false),
            (&with("exact", "true"), true),
            (&with("exact", "True"), false),
            (&with("city", "B"), false),
            ("", false),
        ],
    );
}

#[test]
fn parameters_of_every_kind_can_be_written_between_tags() {
    let schema = json!({
        "type": "object",
        "properties": {
            "short": {"type": "string", "maxLength": 3}, "fixed": {"const": "x y"},
            "maybe": {"type": ["string", "null"]}, "any": {}, "list": {"$ref": "#/$defs/list"},
            "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "count": {"type": ["integer", "null"]}, "tree": {"$ref": "#/$defs/tree"},
        },
        "required": ["short", "fixed", "maybe", "any", "list", "flag", "count", "tree"],
        "$defs": {
            "list": {"type": "array", "items": {"type": "boolean"}},
            "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}},
                "not": {"required": ["next", "other"]}},
        },
    });
    let tool = Tool::function("f".into(), None, Some(schema));
    let model = model_of(&[], &[]);
    let check = |title: &str, values: [&str; 8], is_whole| {
        let grammars = Grammars::new(model.clone(), Some(format(title)));
        let rules = rules(ToolChoice::Required);
        let tools = std::slice::from_ref(&tool);
        let mut constraint =
            grammars.constraint(&rules, tools, AnswerStart::Text).unwrap().unwrap();
        let names = ["short", "fixed", "maybe", "any", "list", "flag", "count", "tree"];
        let parameters: String = names
            .iter()
            .zip(values)
            .map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"))
            .collect();
        let text = format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>");
        check_text(&mut constraint, &model, &text, is_whole);
    };
    let good = ["abc", "x y", "null", "{[", "[true, false]", "null", "3", r#"{"next": {}}"#];
    check("qwen_xml", good, true);
    let python = ["abc", "x y", "None", "1", "[true]", "None", "None", "{}"];
    check("qwen_xml_python", python, true);
    let bad = |at: usize, value: &'static str| {
        let mut values = good;
        values[at] = value;
        values
    };
    for (at, value) in [(0, "abcd"), (1, "x"), (4, "[1]"), (5, "3"), (6, "2.5"), (7, "[]")] {
        check("qwen_xml", bad(at, value), false);
    }
}

#[test]
fn a_schema_that_cannot_be_enforced_costs_no_answer() {
    let loose = json!({
        "type": "object",
        "properties": {"a": {"type": "string", "format": "unknown", "pattern": "(?!x)y"},
            "b": {"oneOf": [{"minimum": 1}, {"maximum": 3}], "not": {"const": 2}}},
        "required": ["a"],
    });
    let broken = json!({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]});
    let endless = json!({"description": "x".repeat(300_000)});
    let model = model_of(&[], &[]);
    let grammars = Grammars::new(model.clone(), Some(format("hermes")));
    let tool = |name: &str, schema: &Json| Tool::function(name.into(), None, Some(schema.clone()));
    let tools = [tool("loose", &loose), tool("broken", &broken), tool("endless", &endless)];
    let check = |name: &str, arguments: &str, is_whole| {
        let rules = rules(ToolChoice::Required);
        let mut constraint =
            grammars.constraint(&rules, &tools, AnswerStart::Text).unwrap().unwrap();
        let text = format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
        );
        check_text(&mut constraint, &model, &text, is_whole);
    };
    check("loose", r#"{"a": "any", "b": 2}"#, true);
    check("loose", r#"{"a": 1}"#, false);
    check("broken", r#"{"a": 1}"#, true);
    check("endless", r#"{"a": 1}"#, true);
    check("endless", "[]", false);
}

#[test]
fn an_answer_is_a_call_or_has_its_form() {
    let model = model_of(&[], &[]);
    let format = format("hermes");
    let (_, one, other) = WRITTEN[0];
    let form = AnswerForm::JsonSchema(json!({"const": "fine"}));
    let with = |tool_choice| AnswerRules { form: form.clone(), ..rules(tool_choice) };
    let check = |rules: &AnswerRules, text: &str, is_whole| {
        check_text(&mut constraint(&model, format, rules), &model, text, is_whole);
    };
    for (choice, takes_calls, takes_form) in [
        (ToolChoice::Auto, true, true),
        (ToolChoice::Required, true, false),
        (ToolChoice::None, false, true),
    ] {
        let rules = with(choice);
        check(&rules, one, takes_calls);
        check(&rules, &turn(format, &[one, other]), takes_calls);
        check(&rules, "\"fine\"", takes_form);
        check(&rules, "fine", false);
        check(&rules, &format!("\"fine\"\n{one}"), false);
    }
}

#[test]
fn a_token_may_span_the_marker_and_the_call() {
    let model = model_of(&[], &["l>\n{", "l>\n[", "l>\n", "ll>", "<tool_call>\n"]);
    let [with_brace, with_other, with_line, _, whole] = [257, 258, 259, 260, 261].map(TokenId);
    let begun = |choice, text: &str| {
        let mut constraint = constraint(&model, format("hermes"), &rules(choice));
        assert_eq!(offer(&mut constraint, &plain(text), N_LOGITS), Fate::Whole);
        constraint
    };
    let found = allowed(&mut begun(ToolChoice::Auto, "So: <tool_cal"), N_LOGITS);
    assert!([with_brace, with_line].iter().all(|it| found.contains(it)));
    assert!(!found.contains(&with_other));
    let found = allowed(&mut begun(ToolChoice::None, "So: <tool_cal"), N_LOGITS);
    let l = TokenId(b'l'.into());
    assert!([with_brace, with_other, with_line].iter().all(|it| !found.contains(it)));
    assert!(found.contains(&l));
    assert!(!allowed(&mut begun(ToolChoice::None, "So: "), N_LOGITS).contains(&whole));
    let mut constraint = begun(ToolChoice::Auto, "So: <tool_cal");
    constraint.accept(with_brace);
    assert!(!constraint.may_end());
    assert_eq!(text_of(&model, &forced(&mut constraint)), "\"name\": \"get");
    let mut constraint = begun(ToolChoice::Auto, "So: ");
    constraint.accept(whole);
    assert_eq!(text_of(&model, &forced(&mut constraint)), "{\"name\": \"get");
}

#[test]
fn impossible_tool_choices_are_refused() {
    let model = model_of(&[], &[]);
    let refused = |format, choice, tools: &[Tool], expected: &str| {
        let grammars = Grammars::new(model.clone(), format);
        let refusal = grammars.constraint(&rules(choice), tools, AnswerStart::Text).unwrap_err();
        assert_eq!(refusal.part, RulePart::ToolChoice);
        assert!(refusal.problem.contains(expected), "{refusal}");
    };
    let hermes = Some(format("hermes"));
    refused(None, ToolChoice::Required, &tools(), "no known tool-call format");
    refused(hermes, ToolChoice::Required, &[], "no tool is available");
    refused(hermes, ToolChoice::Named("other".into()), &tools(), "there is no tool `other`");
    let grammars = Grammars::new(model, None);
    let found = grammars.constraint(&rules(ToolChoice::None), &tools(), AnswerStart::Text);
    assert!(found.unwrap().is_none());
}

#[test]
fn a_form_is_not_blamed_on_the_tools() {
    let form = AnswerForm::JsonSchema(json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}));
    let rules = AnswerRules { form, ..AnswerRules::default() };
    let grammars = Grammars::new(model_of(&[], &[]), Some(format("hermes")));
    let refusal = grammars.constraint(&rules, &tools(), AnswerStart::Text).unwrap_err();
    assert_eq!(refusal.part, RulePart::Form);
    assert!(refusal.problem.contains("`oneOf` at /oneOf"), "{refusal}");
}

#[test]
fn only_tools_that_are_allowed_are_called() {
    let (_, get, get_all) = WRITTEN[0];
    let model = model_of(&[], &[]);
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let allowed = Some(vec!["get_all".to_owned()]);
        let rules = AnswerRules { allowed, ..rules(choice) };
        let check = |text: &str, is_whole| {
            let mut constraint = constraint(&model, format("hermes"), &rules);
            check_text(&mut constraint, &model, text, is_whole);
        };
        check(get_all, true);
        check(get, false);
    }
    let named = ToolChoice::Named("get".into());
    let rules = AnswerRules { allowed: Some(vec!["get_all".into()]), ..rules(named) };
    let grammars = Grammars::new(model, Some(format("hermes")));
    let refusal = grammars.constraint(&rules, &tools(), AnswerStart::Text).unwrap_err();
    assert!(refusal.problem.contains("no tool `get` that may be called"), "{refusal}");
}

/// Writes a call of `f` in the format of Qwen3-Coder.
fn tagged(parameters: &[(&str, &str)]) -> String {
    let written =
        |(name, value): &(&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let parameters: String = parameters.iter().map(written).collect();
    format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
}

#[track_caller]
fn check_tools(title: &str, tools: &[Tool], cases: &[(&str, bool)]) {
    let model = model_of(&[], &[]);
    let grammars = Grammars::new(model.clone(), Some(format(title)));
    for (text, is_whole) in cases {
        let rules = rules(ToolChoice::Required);
        let mut constraint =
            grammars.constraint(&rules, tools, AnswerStart::Text).unwrap().unwrap();
        check_text(&mut constraint, &model, text, *is_whole);
    }
}

#[test]
fn arguments_are_an_object_even_if_the_schema_differs() {
    for kind in [json!("string"), json!(["object", "null"])] {
        let tool = Tool::function("f".into(), None, Some(json!({"type": kind})));
        let call = |arguments: &str| {
            format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
        };
        let cases =
            [(&*call("{\"a\": 1}"), true), (&*call("\"a\""), false), (&*call("null"), false)];
        check_tools("hermes", &[tool], &cases);
    }
}

#[test]
fn kinds_of_parameters_are_those_by_which_they_are_read() {
    let burst = json!({"$ref": "#/$defs/b"});
    let schema = json!({
        "type": "object",
        "properties": {"p": burst, "o": {"properties": {"a": {}}}, "n": {"enum": ["x", null]},
            "i": {"type": "integer", "nullable": true}},
        "$defs": {"b": {"anyOf": [burst, burst, burst, burst]}},
    });
    let tool = Tool::function("f".into(), None, Some(schema));
    let cases = [("p", "any text", true), ("o", "{\"a\": 1}", true), ("o", "text", false)];
    let of = |(name, value, is_whole): (&str, &str, bool)| (tagged(&[(name, value)]), is_whole);
    for (text, is_whole) in cases.map(of) {
        check_tools("qwen_xml", std::slice::from_ref(&tool), &[(&text, is_whole)]);
    }
    for (title, null, other) in [("qwen_xml", "null", "None"), ("qwen_xml_python", "None", "null")]
    {
        let cases = [("n", "x", true), ("n", null, true), ("n", other, false), ("i", "3", true)];
        for (text, is_whole) in cases.map(of) {
            check_tools(title, std::slice::from_ref(&tool), &[(&text, is_whole)]);
        }
    }
}

#[test]
fn a_part_of_a_schema_is_written_where_it_is_used() {
    let mut properties: serde_json::Map<String, Json> =
        (0..399).map(|idx| (format!("p{idx}"), json!({"type": "integer"}))).collect();
    properties.insert("last".into(), json!({"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]}));
    let values: Vec<usize> = (0..25_000).collect();
    let schema = json!({"properties": properties, "$defs": {"e": {"enum": values}}});
    let tool = Tool::function("f".into(), None, Some(schema));
    let offered = [OfferedTool::new(&tool)];
    let model = model_of(&[], &[]);
    let scope = (CallScope::Turn, false);
    let rules = crate::grammar::calls::rules(format("qwen_xml"), &offered, scope, &model);
    assert!(rules.len() < 400_000, "{}", rules.len());
}

#[test]
fn tools_that_are_too_much_together_are_loosened() {
    // Each tool contains its values once for each parameter.
    let large = |name: &str, n_parameters: usize| {
        let use_of_values = json!({"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]});
        let properties: serde_json::Map<String, Json> =
            (0..n_parameters).map(|idx| (format!("p{idx}"), use_of_values.clone())).collect();
        let values: Vec<usize> = (0..9_000).collect();
        let schema = json!({"properties": properties, "$defs": {"e": {"enum": values}}});
        Tool::function(name.into(), None, Some(schema))
    };
    let small = json!({"properties": {"n": {"type": "integer"}}});
    let tools = [large("g", 20), large("h", 390), Tool::function("f".into(), None, Some(small))];
    let any = tagged(&[("q", "text")]).replace("function=f", "function=h");
    check_tools(
        "qwen_xml",
        &tools,
        &[(&tagged(&[("n", "3")]), true), (&tagged(&[("n", "x")]), false), (&any, true)],
    );
}
