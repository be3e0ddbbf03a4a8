//! Templates for models that publish none.
//!
//! `DeepSeek` V3.2 publishes a program in Python that writes its prompts. **Invariant:** a template
//! here writes what such a program writes (`make.py`), and is used only where the model's own files
//! have no template.

const DEEPSEEK_V32: &str = include_str!("deepseek_v32.jinja");

/// Returns the source of our template for a `model_type` of `config.json`, or a
/// `general.architecture` of GGUF files.
pub(crate) fn own_template(model_type: &str) -> Option<&'static str> {
    matches!(model_type, "deepseek_v32" | "deepseek32").then_some(DEEPSEEK_V32)
}
