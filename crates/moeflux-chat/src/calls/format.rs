//! The ways to write calls, as the literals that chat templates write.
//!
//! The calls of a turn are `before_calls`, then the calls, separated by `between_calls`, then
//! `after_calls`. A call is `before_call`, `before_name`, the name, `after_name`, the
//! arguments, `after_arguments`, `after_call`. **Invariant:** the concatenation of these literals
//! is the text that the template writes, including whitespace; [`str::trim`] turns a literal into a
//! marker. Nothing here depends on tools.

use moeflux::ChatTemplate;

/// A way to write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallFormat {
    /// A name for tests and error messages.
    pub title: &'static str,
    /// Between the text of a turn and its calls.
    pub(crate) after_text: &'static str,
    /// Other texts that may begin a call. An answer that is held to rules must not contain them.
    pub(crate) other_openers: &'static [&'static str],
    /// The marker that may stand before calls that need none; otherwise empty.
    pub(crate) optional_opener: &'static str,
    /// Before the first call; empty if the calls of a turn have no common frame.
    pub(crate) before_calls: &'static str,
    /// Before each call.
    pub(crate) before_call: &'static str,
    /// Between `before_call` and the name.
    pub(crate) before_name: &'static str,
    /// The form of the name.
    pub(crate) name: NameForm,
    /// Between the name and the arguments.
    pub(crate) after_name: &'static str,
    /// The form of the arguments.
    pub(crate) arguments: ArgumentsForm,
    /// After the arguments, before `after_call`.
    pub(crate) after_arguments: &'static str,
    /// After each call.
    pub(crate) after_call: &'static str,
    /// Between a call and the next one.
    pub(crate) between_calls: &'static str,
    /// After the last call; empty if the calls of a turn have no common frame.
    pub(crate) after_calls: &'static str,
}

/// The form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameForm {
    /// As it is.
    Plain,
    /// Followed by a colon and a number that counts the calls of the conversation from 0. Together
    /// with `before_name` this is the id of the call.
    Numbered,
}

/// The form of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsForm {
    /// As one JSON object.
    Json,
    /// One after another, each between tags.
    Tagged(Tags),
}

/// The literals around the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Before the name of a parameter.
    pub(crate) before_key: &'static str,
    /// Between the name of a parameter and its value.
    pub(crate) after_key: &'static str,
    /// As `after_key`, for values that are not strings. Where it is the same, the text does not
    /// show whether a value is a string.
    pub(crate) after_json_key: &'static str,
    /// After the value.
    pub(crate) after_value: &'static str,
    /// In the place of parameters, for a call without any.
    pub(crate) no_parameters: &'static str,
    /// The form of scalar values other than strings. Strings are written raw, objects and arrays as
    /// JSON.
    pub(crate) scalars: Scalars,
}

impl Tags {
    /// Returns whether the text after a key shows whether the value is a string.
    pub(crate) fn mark_strings(&self) -> bool {
        self.after_key != self.after_json_key
    }
}

/// The form of numbers, booleans and null between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalars {
    /// `true`, `false`, `null`.
    Json,
    /// `True`, `False`, `None`.
    Python,
}

/// A JSON object between `<tool_call>` and `</tool_call>`: Hermes, Qwen 2.5 and 3.
pub(crate) const HERMES: CallFormat = CallFormat {
    title: "hermes",
    after_text: "\n",
    other_openers: &[],
    optional_opener: "",
    before_calls: "",
    before_call: "<tool_call>\n",
    before_name: "{\"name\": \"",
    name: NameForm::Plain,
    after_name: "\", \"arguments\": ",
    arguments: ArgumentsForm::Json,
    after_arguments: "}",
    after_call: "\n</tool_call>",
    between_calls: "\n",
    after_calls: "",
};

/// Tags that contain the names of function and parameters: Qwen3-Coder, Qwen 3.5 and 3.6.
pub(crate) const QWEN_XML: CallFormat = CallFormat {
    title: "qwen_xml",
    after_text: "\n\n",
    other_openers: &[],
    optional_opener: "",
    before_calls: "",
    before_call: "<tool_call>\n",
    before_name: "<function=",
    name: NameForm::Plain,
    after_name: ">\n",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<parameter=",
        after_key: ">\n",
        after_json_key: ">\n",
        after_value: "\n</parameter>\n",
        no_parameters: "",
        scalars: Scalars::Json,
    }),
    after_arguments: "</function>",
    after_call: "\n</tool_call>",
    between_calls: "\n",
    after_calls: "",
};

/// As [`QWEN_XML`], in templates that format numbers, booleans and null as Python does.
pub(crate) const QWEN_XML_PYTHON: CallFormat = CallFormat {
    title: "qwen_xml_python",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<parameter=",
        after_key: ">\n",
        after_json_key: ">\n",
        after_value: "\n</parameter>\n",
        no_parameters: "",
        scalars: Scalars::Python,
    }),
    ..QWEN_XML
};

/// Fenced JSON after the name, in a section: `DeepSeek` V3 and R1.
pub(crate) const DEEPSEEK_V3: CallFormat = CallFormat {
    title: "deepseek_v3",
    after_text: "",
    other_openers: &[],
    optional_opener: "",
    before_calls: "<｜tool▁calls▁begin｜>",
    before_call: "<｜tool▁call▁begin｜>",
    before_name: "function<｜tool▁sep｜>",
    name: NameForm::Plain,
    after_name: "\n```json\n",
    arguments: ArgumentsForm::Json,
    after_arguments: "\n```",
    after_call: "<｜tool▁call▁end｜>",
    between_calls: "\n",
    after_calls: "<｜tool▁calls▁end｜>",
};

/// As [`DEEPSEEK_V3`] without fence and type: `DeepSeek` V3.1.
pub(crate) const DEEPSEEK_V3_1: CallFormat = CallFormat {
    title: "deepseek_v3_1",
    before_name: "",
    after_name: "<｜tool▁sep｜>",
    after_arguments: "",
    between_calls: "",
    ..DEEPSEEK_V3
};

/// JSON after an id that contains the name, in a section: Kimi K2.
pub(crate) const KIMI_K2: CallFormat = CallFormat {
    title: "kimi_k2",
    after_text: "",
    other_openers: &[],
    optional_opener: "",
    before_calls: "<|tool_calls_section_begin|>",
    before_call: "<|tool_call_begin|>",
    before_name: "functions.",
    name: NameForm::Numbered,
    after_name: "<|tool_call_argument_begin|>",
    arguments: ArgumentsForm::Json,
    after_arguments: "",
    after_call: "<|tool_call_end|>",
    between_calls: "",
    after_calls: "<|tool_calls_section_end|>",
};

/// Tags around keys and values, after the name: GLM-4.5 and 4.6.
pub(crate) const GLM_4_5: CallFormat = CallFormat {
    title: "glm_4_5",
    after_text: "\n",
    other_openers: &[],
    optional_opener: "",
    before_calls: "",
    before_call: "<tool_call>",
    before_name: "",
    name: NameForm::Plain,
    after_name: "\n",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<arg_key>",
        after_key: "</arg_key>\n<arg_value>",
        after_json_key: "</arg_key>\n<arg_value>",
        after_value: "</arg_value>\n",
        no_parameters: "",
        scalars: Scalars::Json,
    }),
    after_arguments: "",
    after_call: "</tool_call>",
    between_calls: "\n",
    after_calls: "",
};

/// As [`GLM_4_5`] without line breaks: GLM-4.7.
pub(crate) const GLM_4_7: CallFormat = CallFormat {
    title: "glm_4_7",
    after_text: "",
    after_name: "",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<arg_key>",
        after_key: "</arg_key><arg_value>",
        after_json_key: "</arg_key><arg_value>",
        after_value: "</arg_value>",
        no_parameters: "",
        scalars: Scalars::Json,
    }),
    between_calls: "",
    ..GLM_4_5
};

/// Tags that contain the names of function and parameters, in a section: `MiniMax` M2.
pub(crate) const MINIMAX_M2: CallFormat = CallFormat {
    title: "minimax_m2",
    after_text: "\n",
    other_openers: &[],
    optional_opener: "",
    before_calls: "<minimax:tool_call>\n",
    before_call: "<invoke name=\"",
    before_name: "",
    name: NameForm::Plain,
    after_name: "\">\n",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<parameter name=\"",
        after_key: "\">",
        after_json_key: "\">",
        after_value: "</parameter>\n",
        no_parameters: "",
        scalars: Scalars::Json,
    }),
    after_arguments: "",
    after_call: "</invoke>\n",
    between_calls: "",
    after_calls: "</minimax:tool_call>",
};

/// As [`MINIMAX_M2`], with other names, and with an attribute that marks strings: `DeepSeek` V3.2.
pub(crate) const DEEPSEEK_V3_2: CallFormat = CallFormat {
    title: "deepseek_v3_2",
    after_text: "\n\n",
    before_calls: "<｜DSML｜function_calls>\n",
    before_call: "<｜DSML｜invoke name=\"",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<｜DSML｜parameter name=\"",
        after_key: "\" string=\"true\">",
        after_json_key: "\" string=\"false\">",
        after_value: "</｜DSML｜parameter>\n",
        no_parameters: "\n",
        scalars: Scalars::Json,
    }),
    after_call: "</｜DSML｜invoke>\n",
    after_calls: "</｜DSML｜function_calls>",
    ..MINIMAX_M2
};

/// As [`GLM_4_5`], with a suffix in all tags, in a section: Hunyuan 3.
pub(crate) const HUNYUAN_3: CallFormat = CallFormat {
    title: "hunyuan_3",
    after_text: "",
    other_openers: &[],
    optional_opener: "",
    before_calls: "<tool_calls:opensource>\n",
    before_call: "<tool_call:opensource>",
    before_name: "",
    name: NameForm::Plain,
    after_name: "<tool_sep:opensource>\n",
    arguments: ArgumentsForm::Tagged(Tags {
        before_key: "<arg_key:opensource>",
        after_key: "</arg_key:opensource>\n<arg_value:opensource>",
        after_json_key: "</arg_key:opensource>\n<arg_value:opensource>",
        after_value: "</arg_value:opensource>\n",
        no_parameters: "",
        scalars: Scalars::Json,
    }),
    after_arguments: "",
    after_call: "</tool_call:opensource>\n",
    between_calls: "",
    after_calls: "</tool_calls:opensource>",
};

/// A message to the tool: gpt-oss. The model prefers the order below, with the recipient after the
/// channel; its template writes the recipient first.
pub(crate) const HARMONY: CallFormat = CallFormat {
    title: "harmony",
    after_text: "<|end|><|start|>assistant",
    other_openers: &["<|start|>assistant to=", "<|channel|>analysis to=", "<|channel|>final to="],
    optional_opener: "",
    before_calls: "",
    before_call: "<|channel|>commentary to=",
    before_name: "functions.",
    name: NameForm::Plain,
    after_name: " <|constrain|>json<|message|>",
    arguments: ArgumentsForm::Json,
    after_arguments: "",
    after_call: "<|call|>",
    between_calls: "<|start|>assistant",
    after_calls: "",
};

/// A JSON object without a marker, at the start of an answer: Llama 3.1 to 3.3. Their templates
/// write a single call; the semicolon is what other engines read between several.
pub(crate) const LLAMA_3: CallFormat = CallFormat {
    title: "llama_3",
    after_text: "",
    other_openers: &[],
    optional_opener: "<|python_tag|>",
    before_calls: "",
    before_call: "",
    before_name: "{\"name\": \"",
    name: NameForm::Plain,
    after_name: "\", \"parameters\": ",
    arguments: ArgumentsForm::Json,
    after_arguments: "}",
    after_call: "",
    between_calls: "; ",
    after_calls: "",
};

/// Each format with strings that all occur in its templates. The first match counts, so a more
/// specific format precedes those that it resembles.
const BY_TEMPLATE: [(&CallFormat, &[&str]); 13] = [
    (&KIMI_K2, &["<|tool_calls_section_begin|>"]),
    (&DEEPSEEK_V3, &["<｜tool▁calls▁begin｜>", "```json"]),
    (&DEEPSEEK_V3_1, &["<｜tool▁calls▁begin｜>"]),
    (&DEEPSEEK_V3_2, &["<｜DSML｜function_calls>", "<｜DSML｜invoke name="]),
    (&GLM_4_7, &["<tool_call>", "</arg_key><arg_value>"]),
    (&GLM_4_5, &["<tool_call>", "<arg_key>"]),
    (&QWEN_XML_PYTHON, &["<tool_call>", "<function=", "<parameter=", "else args_value | string"]),
    (&QWEN_XML, &["<tool_call>", "<function=", "<parameter="]),
    (&HERMES, &["<tool_call>", "arguments"]),
    (&HARMONY, &["<|channel|>commentary", "<|call|>"]),
    (&MINIMAX_M2, &["<minimax:tool_call>", "<invoke name=", "<parameter name="]),
    (&HUNYUAN_3, &["<tool_calls", "<arg_key", ":opensource"]),
    (&LLAMA_3, &["<|start_header_id|>ipython", "{\"name\": ", "\"parameters\": "]),
];

impl CallFormat {
    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        BY_TEMPLATE.iter().map(|(format, _)| *format)
    }

    /// Returns the format in which this template writes calls; `None` if it is not a known one.
    #[must_use]
    pub fn of(template: &ChatTemplate) -> Option<&'static Self> {
        let is_written = |marks: &[&str]| marks.iter().all(|mark| template.mentions(mark));
        BY_TEMPLATE.iter().find(|(_, marks)| is_written(marks)).map(|(format, _)| *format)
    }

    /// Returns the prefix of call ids, for formats in which a call's name is part of its id.
    pub(crate) fn id_prefix(&self) -> Option<&'static str> {
        (self.name == NameForm::Numbered).then_some(self.before_name)
    }

    /// Returns whether calls begin without a marker.
    pub(crate) fn is_bare(&self) -> bool {
        self.before_calls.is_empty() && self.before_call.is_empty()
    }

    /// Returns the marker with which the calls of a turn begin, or may begin.
    #[must_use]
    pub fn opener(&self) -> &'static str {
        let openers = [self.before_calls, self.before_call, self.optional_opener];
        openers.into_iter().find(|it| !it.is_empty()).unwrap_or_default().trim()
    }

    /// Returns all markers in angle brackets, which a tokenizer may have as tokens; there may be
    /// duplicates.
    pub fn markers(&self) -> impl Iterator<Item = &'static str> {
        let before = [self.optional_opener, self.before_calls, self.before_call];
        let around = [self.before_name, self.after_name];
        let after = [self.after_arguments, self.after_call, self.after_calls];
        let tags = match self.arguments {
            ArgumentsForm::Json => [""; 3],
            ArgumentsForm::Tagged(tags) => [tags.before_key, tags.after_key, tags.after_value],
        };
        let literals = before.into_iter().chain(around).chain(tags).chain(after);
        let pieces = literals.flat_map(|literal| literal.split_inclusive('>'));
        pieces.filter_map(|piece| Some(&piece[piece.find('<')?..])).filter(|it| it.ends_with('>'))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use moeflux::provider::text::SpecialTokens;

    use super::*;

    const TEMPLATES: [(&str, Option<&str>); 17] = [
        (include_str!("../../../moeflux/src/text/template/cases/qwen3.jinja"), Some("hermes")),
        (
            include_str!("../../../moeflux/src/text/template/cases/qwen3_5.jinja"),
            Some("qwen_xml_python"),
        ),
        (
            include_str!("../../../moeflux/src/text/template/cases/deepseek_v3.jinja"),
            Some("deepseek_v3"),
        ),
        (include_str!("../../../moeflux/src/text/template/cases/kimi_k2.jinja"), Some("kimi_k2")),
        (include_str!("../../../moeflux/src/text/template/cases/glm4_moe.jinja"), Some("glm_4_5")),
        (include_str!("../../../moeflux-demo/model/chat_template.jinja"), Some("hermes")),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", Some("deepseek_v3_1")),
        (
            include_str!("../../../moeflux/src/text/template/own/deepseek_v32.jinja"),
            Some("deepseek_v3_2"),
        ),
        ("<tool_call>{{ f }}<arg_key>{{ k }}</arg_key><arg_value>", Some("glm_4_7")),
        (include_str!("../../../moeflux/src/text/template/cases/gpt_oss.jinja"), Some("harmony")),
        (
            include_str!("../../../moeflux/src/text/template/cases/minimax_m2.jinja"),
            Some("minimax_m2"),
        ),
        (
            include_str!("../../../moeflux/src/text/template/cases/hunyuan_3.jinja"),
            Some("hunyuan_3"),
        ),
        ("<tool_calls:opensource><tool_call:opensource><arg_key:opensource>", Some("hunyuan_3")),
        (include_str!("../../../moeflux/src/text/template/cases/llama3.jinja"), Some("llama_3")),
        ("<|start_header_id|>ipython<|end_header_id|>{{ result }}", None),
        ("<seed:tool_call><function=f><parameter=p>", None),
        ("<function=f>{{ arguments }}</function>", None),
    ];

    #[test]
    fn templates_determine_the_call_format() {
        for (source, expected) in TEMPLATES {
            let path = Path::new("t.jinja");
            let template = ChatTemplate::from_source(path, source, SpecialTokens::default());
            let found = CallFormat::of(&template.unwrap()).map(|format| format.title);
            assert_eq!(found, expected, "{source}");
        }
    }

    #[test]
    fn markers_are_the_parts_in_angle_brackets() {
        let markers = |format: &CallFormat| format.markers().collect::<Vec<_>>();
        assert_eq!(markers(&HERMES), ["<tool_call>", "</tool_call>"]);
        assert_eq!(
            markers(&QWEN_XML),
            ["<tool_call>", "</parameter>", "</function>", "</tool_call>"]
        );
        assert_eq!(
            markers(&GLM_4_5)[1..5],
            ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
        );
        assert_eq!(markers(&DEEPSEEK_V3).len(), 5);
        assert_eq!(markers(&KIMI_K2)[2], "<|tool_call_argument_begin|>");
        assert_eq!(KIMI_K2.opener(), markers(&KIMI_K2)[0]);
        assert_eq!(QWEN_XML.opener(), "<tool_call>");
        assert_eq!(markers(&LLAMA_3), [LLAMA_3.opener()]);
    }
}
