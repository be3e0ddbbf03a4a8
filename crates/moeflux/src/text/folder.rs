//! Opens the tokenizer of a checkpoint's folder, from whichever file has it.
//!
//! **Invariant:** `tokenizer.json` takes precedence. If a folder has only unsupported files, the
//! error names one.

use std::path::Path;

use crate::error::{Error, Result};
use crate::text::special::SpecialTokens;
use crate::text::tokenizer::Tokenizer;

impl Tokenizer {
    /// Reads `tokenizer.json`, or otherwise `tiktoken.model`, and the additions in
    /// `tokenizer_config.json`, for a model with `vocab_rows` embedding rows.
    ///
    /// # Errors
    /// If a file is missing, too long or malformed; if an added token does not get the id in its
    /// file; if an id has no embedding row; [`Error::UnknownTokenizer`].
    pub fn open(dir: &Path, vocab_rows: usize) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        if let Some(tokenizer) = Self::of_json(&path, || SpecialTokens::open(dir), vocab_rows)? {
            return Ok(tokenizer);
        }
        let tokenizer = Self::of_tiktoken(dir, vocab_rows)?;
        tokenizer.ok_or_else(|| Error::malformed(&path, missing(dir)))
    }
}

fn missing(dir: &Path) -> String {
    let others = ["tokenizer.model", "vocab.json"];
    let found = others.iter().find(|name| dir.join(name).exists());
    let way_out = "save it again with `AutoTokenizer.from_pretrained(..).save_pretrained(..)`";
    match found {
        Some(name) => format!("missing; `{name}` alone cannot be read: {way_out}"),
        None => "missing; copy it from where the checkpoint was published".to_owned(),
    }
}
