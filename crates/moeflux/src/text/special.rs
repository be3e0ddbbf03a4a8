//! Reads the tokens with a role from `tokenizer_config.json` and `special_tokens_map.json`.
//!
//! **Invariant:** a role maps to the token's text, and the first file takes precedence. Ids are
//! known only for tokens that the file lists with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::text::files::{one_line, read_object};

const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token that `tokenizer_config.json` lists with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedToken {
    pub(super) id: TokenId,
    pub(super) content: String,
    pub(super) special: bool,
}

/// The tokens with a role, and the tokens that are listed with their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    roles: BTreeMap<&'static str, String>,
    pub(super) add_bos: bool,
    pub(super) listed: Vec<ListedToken>,
    pub(super) path: PathBuf,
}

impl SpecialTokens {
    /// Reads a checkpoint's folder. Without the files no token has a role.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or a value has the wrong type. The error names the key.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer_config.json");
        let mut tokens = Self { path: path.clone(), ..Self::default() };
        if let Some(json) = read_object(&path)? {
            tokens.read_roles(&path, &json)?;
            tokens.listed = listed(&path, &json)?;
            tokens.add_bos = match json.get("add_bos_token") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(add)) => *add,
                Some(other) => return Err(wrong(&path, "add_bos_token", other)),
            };
        }
        let path = dir.join("special_tokens_map.json");
        if let Some(json) = read_object(&path)? {
            tokens.read_roles(&path, &json)?;
        }
        Ok(tokens)
    }

    /// Creates the roles from a source other than the two files.
    pub(super) fn of_roles(
        path: &Path,
        roles: impl IntoIterator<Item = (&'static str, String)>,
        add_bos: bool,
    ) -> Self {
        let roles = roles.into_iter().collect();
        Self { roles, add_bos, listed: Vec::new(), path: path.to_owned() }
    }

    /// Returns the text of the token with a role such as `bos_token`.
    #[must_use]
    pub fn role(&self, role: &str) -> Option<&str> {
        self.roles.get(role).map(String::as_str)
    }

    /// Returns every role with its token's text.
    pub fn roles(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.roles.iter().map(|(role, text)| (*role, text.as_str()))
    }

    fn read_roles(&mut self, path: &Path, json: &Value) -> Result<()> {
        for role in ROLES {
            let text = match json.get(role) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text,
                Some(other) => match other.get("content") {
                    Some(Value::String(text)) => text,
                    _ => return Err(wrong(path, role, other)),
                },
            };
            self.roles.entry(role).or_insert_with(|| text.clone());
        }
        Ok(())
    }
}

fn wrong(path: &Path, key: &str, value: &Value) -> Error {
    let shortened: String = value.to_string().chars().take(60).collect();
    Error::malformed(
        path,
        one_line(&format!("`{key}` is {shortened}, which this program cannot read")),
    )
}

fn listed(path: &Path, json: &Value) -> Result<Vec<ListedToken>> {
    let entries = match json.get("added_tokens_decoder") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(other) => return Err(wrong(path, "added_tokens_decoder", other)),
    };
    let mut listed = Vec::with_capacity(entries.len());
    for (key, entry) in entries {
        let id = key.parse().ok().map(TokenId);
        let content = entry.get("content").and_then(Value::as_str);
        let (Some(id), Some(content)) = (id, content) else {
            return Err(wrong(path, &format!("added_tokens_decoder.{key}"), entry));
        };
        let special = entry.get("special").and_then(Value::as_bool).unwrap_or(false);
        listed.push(ListedToken { id, content: content.to_owned(), special });
    }
    listed.sort_by_key(|token| token.id);
    Ok(listed)
}
