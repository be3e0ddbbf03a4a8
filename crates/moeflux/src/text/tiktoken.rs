//! Reads `tiktoken.model`, as Kimi publishes it: one line per token, with base64 and rank.
//!
//! The file has neither the expression that splits a text nor the special tokens. The expression
//! follows from the tokenizer program that the checkpoint names (`recipes`). The special tokens are
//! those in `tokenizer_config.json` and reserved ones after the ranks. **Invariant:** ranks are the
//! numbers from 0 on, each once; an unknown program is an error that names it.

use std::path::Path;

use tokenizers::AddedToken;

use crate::error::{Error, Result};
use crate::format::read_file_if_there;
use crate::text::files::{one_line, read_object, shortened};
use crate::text::gguf::merges::{SplittableToken, TieOrder, merges};
use crate::text::gguf::recipes::Recipe;
use crate::text::special::SpecialTokens;
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer::byte_level::char_of;
use crate::text::tokenizer::pipeline::{AddedTokens, BpeModel, DeclaredToken, VocabularyMap};

/// Name of the file in a folder.
pub(super) const NAME: &str = "tiktoken.model";

/// Maximum bytes of the file; Kimi's has 2.8 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of tokens; Kimi's file has 163,584.
const TOKENS_MAX: usize = 1 << 19;

/// Maximum bytes of a line: the longest token that a vocabulary accepts, and its rank.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Known tokenizer programs, by their names in `auto_map` of `tokenizer_config.json`, with the
/// matching recipes. Kimi's program cuts texts at 400,000 characters, and runs of 25,000 characters
/// without or of blanks, because its matcher fails on longer ones. Nothing is cut here, so the
/// tokens of such texts differ.
const PROGRAMS: [(&str, &str); 1] = [("tokenization_kimi.TikTokenTokenizer", "kimi-k2")];

/// The class that Kimi's program defines, and the prefix of its model types, for checkpoints
/// without `auto_map`.
const CLASS: &str = "TikTokenTokenizer";
const MODEL_TYPE: &str = "kimi_";

/// Number of ids after the ranks that are special tokens, with or without a name.
const RESERVED: usize = 258;

impl Tokenizer {
    /// Reads `tiktoken.model` and `tokenizer_config.json`; `None` if the folder has no
    /// `tiktoken.model`.
    pub(super) fn of_tiktoken(dir: &Path, vocab_rows: usize) -> Result<Option<Self>> {
        let path = dir.join(NAME);
        let Some(bytes) = read_file_if_there(&path, FILE_BYTES_MAX)? else { return Ok(None) };
        let recipe = recipe(dir)?;
        let special = SpecialTokens::open(dir)?;
        let refused = |problem: String| Error::malformed(&path, one_line(&problem));
        let tokens = tokens(&bytes).map_err(refused)?;
        let added = added(&special, tokens.len(), vocab_rows).map_err(refused)?;
        let model = model(&tokens).map_err(refused)?;
        let pipeline = recipe.pipeline(&path, added, model, NAME)?;
        Self::of_pipeline(&path, pipeline, special, vocab_rows).map(Some)
    }
}

/// Returns the recipe for the checkpoint's tokenizer program.
fn recipe(dir: &Path) -> Result<&'static Recipe> {
    let config = read_object(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let model = read_object(&dir.join("config.json"))?.unwrap_or_default();
    let listed = &config["auto_map"]["AutoTokenizer"];
    let program = listed.as_str().or_else(|| listed.get(0)?.as_str());
    let class = config["tokenizer_class"].as_str();
    let kind = model["model_type"].as_str().unwrap_or_default();
    let known = match program {
        // The repository may precede the name.
        Some(program) => {
            let program = program.rsplit("--").next().unwrap_or(program);
            PROGRAMS.iter().find(|(name, _)| *name == program).map(|(_, recipe)| *recipe)
        }
        None => (class == Some(CLASS) && kind.starts_with(MODEL_TYPE)).then_some(PROGRAMS[0].1),
    };
    known.and_then(Recipe::named).ok_or_else(|| {
        let named = program.or(class).map_or_else(
            || "no tokenizer is named in tokenizer_config.json".to_owned(),
            |name| format!("the tokenizer `{}` is not known", shortened(name)),
        );
        let problem = format!("{named} (known: {})", PROGRAMS[0].0);
        Error::UnknownTokenizer { path: dir.join(NAME), problem }
    })
}

/// Parses the bytes of all tokens, by rank.
fn tokens(file: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
    let lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines = (1..).zip(lines).filter(|(_, line): &(usize, &[u8])| !line.is_empty());
    let n_tokens = lines.clone().count();
    if n_tokens > TOKENS_MAX {
        return Err(format!("{n_tokens} tokens; the limit is {TOKENS_MAX}"));
    }
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None; n_tokens];
    for (number, line) in lines {
        if line.len() > LINE_BYTES_MAX {
            let n_bytes = line.len();
            return Err(format!(
                "line {number} has {n_bytes} bytes; the limit is {LINE_BYTES_MAX}"
            ));
        }
        let (token, rank) = parsed(line)
            .ok_or_else(|| format!("line {number} is not a token in base64 and its rank"))?;
        let place = tokens.get_mut(rank).ok_or_else(|| {
            format!("line {number} has rank {rank}, but there are {n_tokens} tokens")
        })?;
        if place.replace(token).is_some() {
            return Err(format!("line {number}: two tokens have rank {rank}"));
        }
    }
    // There are as many ranks as tokens, none too large and none repeated, so all are present.
    Ok(tokens.into_iter().flatten().collect())
}

fn parsed(line: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (token, rank, rest) = (words.next()?, words.next()?, words.next());
    let rank = std::str::from_utf8(rank).ok().filter(|_| rest.is_none())?;
    let is_number = rank.bytes().all(|it| it.is_ascii_digit());
    let token = decoded(token).filter(|token| !token.is_empty())?;
    Some((token, rank.parse().ok().filter(|_| is_number)?))
}

/// Decodes base64 with padding.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let n_padding = text.iter().rev().take_while(|it| **it == b'=').count();
    if !text.len().is_multiple_of(4) || n_padding > 2 {
        return None;
    }
    let n_letters = text.len() - n_padding;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (at, group) in (0..).step_by(4).zip(text.chunks(4)) {
        let mut bits = 0_u32;
        for (place, letter) in group.iter().enumerate() {
            let digit = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if at + place >= n_letters => 0,
                _ => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - n_padding);
    Some(bytes)
}

/// Builds the model. Tokens merge in the order of the rank of the merged token.
fn model(tokens: &[Vec<u8>]) -> std::result::Result<BpeModel, String> {
    let text = |token: &Vec<u8>| token.iter().map(|byte| char_of(*byte)).collect::<String>();
    let texts: Vec<String> = tokens.iter().map(text).collect();
    let mut vocabulary = VocabularyMap::default();
    for (rank, text) in (0..).zip(&texts) {
        vocabulary.insert(text.clone(), rank)?;
    }
    let byte = (0..=u8::MAX).find(|it| vocabulary.id_of(&char_of(*it).to_string()).is_none());
    if let Some(byte) = byte {
        return Err(format!("no token for byte 0x{byte:02x}"));
    }
    let ranks = 0_u32..;
    let splittable =
        ranks.zip(&texts).map(|(rank, text)| SplittableToken { text, priority: -f64::from(rank) });
    let splittable: Vec<SplittableToken<'_>> = splittable.collect();
    let merges = merges(&splittable, &vocabulary, TieOrder::ById)?;
    Ok(BpeModel::of_bytes(vocabulary, merges, true))
}

/// Returns the special tokens after the ranks. Reserved ones without an embedding row are omitted.
fn added(
    special: &SpecialTokens,
    n_tokens: usize,
    vocab_rows: usize,
) -> std::result::Result<AddedTokens, String> {
    let ids = n_tokens..n_tokens + RESERVED;
    let declared = ids.filter_map(|id| {
        let row = u32::try_from(id).ok()?;
        let listed = special.listed.iter().find(|it| it.id.0 == row);
        let (text, is_special) = match listed {
            Some(listed) => (listed.content.clone(), listed.special),
            None if id >= vocab_rows => return None,
            None => (format!("<|reserved_token_{id}|>"), true),
        };
        let token = AddedToken::from(text, is_special).normalized(false);
        Some(DeclaredToken { id: row, token })
    });
    AddedTokens::new(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(token: &[u8], rank: usize) -> String {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in token.chunks(3) {
            let mut bytes = [0; 4];
            bytes[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(bytes);
            for place in 0..4 {
                let digit = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap();
                let is_padding = place > group.len();
                text.push(if is_padding { '=' } else { char::from(letters[digit]) });
            }
        }
        format!("{text} {rank}\n")
    }

    fn bytes() -> String {
        (0..=u8::MAX).map(|byte| line(&[byte], usize::from(byte))).collect()
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        for (text, expected) in [
            ("AA==", Some(&[0][..])),
            ("/+8=", Some(&[0xff, 0xef])),
            ("QUJD", Some(b"ABC")),
            ("QUJDRA==", Some(b"ABCD")),
            ("QUJ", None),
            ("Q===", None),
            ("QU=J", None),
            ("QQ==QUJD", None),
            ("QU*D", None),
            ("====", None),
        ] {
            assert_eq!(decoded(text.as_bytes()).as_deref(), expected, "{text}");
        }
        for token in [&b"a"[..], b"ab", b"abc", "語é".as_bytes(), &[255; 7]] {
            let line = line(token, 7);
            assert_eq!(parsed(line.trim().as_bytes()), Some((token.to_vec(), 7)));
        }
    }

    #[test]
    fn errors_in_a_file_are_one_line() {
        let check = |text: &str, expected: &str| {
            let found = tokens(text.as_bytes()).and_then(|it| model(&it).map(drop));
            assert!(found.as_ref().unwrap_err().contains(expected), "{text}: {found:?}");
        };
        check("", "no token for byte 0x00");
        check("QQ== 0\nQg== 2\n", "line 2 has rank 2, but there are 2 tokens");
        check("QQ== 0\n\nQg== 0\n", "line 3: two tokens have rank 0");
        check("QQ==\n", "line 1 is not a token in base64 and its rank");
        check("QQ== 0 0\n", "line 1 is not");
        check("QQ== +0\n", "line 1 is not");
        check("QQ== 99999999999999999999\n", "line 1 is not");
        check(&format!("{} 0\n", "A".repeat(9_000)), "line 1 has 9002 bytes");
        check(&line(b"A", 0), "no token for byte 0x00");
        let twice = bytes() + &line(b"A", 256);
        check(&twice, "one text has ids 65 and 256");
        let long = bytes() + &line(&[b'a'; 5_000], 256);
        check(&long, "token 256 has 5000 bytes");
    }

    #[test]
    fn ranks_determine_the_order_of_merges() {
        let file = bytes() + &line(b"bc", 256) + &line(b"ab", 257) + &line(b"abc", 258);
        assert!(model(&tokens(file.as_bytes()).unwrap()).is_ok());
    }
}
