//! Opens the tokenizer of a checkpoint's folder, whichever of its files has it.
//!
//! **Invariant:** `tokenizer.json` wins; a folder with other files only is an error that says which
//! of them cannot be read.

use std::path::Path;

use crate::error::{Error, Result};
use crate::text::special::SpecialTokens;
use crate::text::tokenizer::Tokenizer;

impl Tokenizer {
    /// Reads `tokenizer.json`, or else `tiktoken.model`, and what `tokenizer_config.json` adds to
    /// it, for a model with `vocab_rows` embedding rows.
    ///
    /// # Errors
    /// A file that is missing, too long or malformed; an added token whose id is not what its file
    /// says; an id that has no embedding row; [`Error::UnknownTokenizer`].
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
