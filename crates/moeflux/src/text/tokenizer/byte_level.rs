//! The alphabet of byte-level tokenizers, and the smallest tokenizer that uses it.
//!
//! GPT-2's tokenizer writes each byte as one printable character: printable ASCII and Latin-1 as
//! themselves, the 68 others, in ascending order, as the characters from 256 on. **Invariant:**
//! `byte_of` inverts `char_of` for all 256 bytes.

use serde_json::{Value, json};

/// Number of byte entries at the beginning of a byte-level vocabulary.
pub const BYTE_TOKENS: usize = 256;

/// The first character that stands for an unprintable byte.
const UNPRINTABLE_FROM: u32 = 256;

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Returns the character that stands for a byte.
pub(in crate::text) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|other| !is_printable(*other)).count();
    let code = u32::try_from(n_before).map(|n_before| UNPRINTABLE_FROM + n_before);
    code.ok().and_then(char::from_u32).expect("at most 68 unprintable bytes")
}

/// The characters of all bytes.
#[derive(Clone, Debug)]
pub(in crate::text) struct Alphabet([char; 256]);

impl Alphabet {
    pub(in crate::text) fn new() -> Self {
        Self(std::array::from_fn(|byte| char_of(u8::try_from(byte).unwrap_or(u8::MAX))))
    }

    /// Returns a text with one character for each byte of `text`.
    pub(in crate::text) fn text_of(&self, text: &str) -> String {
        text.bytes().map(|byte| self.0[usize::from(byte)]).collect()
    }
}

/// Returns the byte that a character stands for.
pub(in crate::text) fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        0x100..=0x120 => u8::try_from(u32::from(character) - 0x100).ok(),
        0x121..=0x142 => u8::try_from(u32::from(character) - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => u8::try_from(character).ok().filter(|byte| is_printable(*byte)),
    }
}

/// Builds a `tokenizer.json` with at most `vocab_size` entries: token n is byte n, followed by the
/// entries of `special` that fit. A vocabulary below 256 has only the first bytes.
#[must_use]
pub fn byte_tokenizer_json(vocab_size: usize, special: &[&str]) -> Value {
    let n_bytes = vocab_size.min(BYTE_TOKENS);
    let vocab: serde_json::Map<String, Value> =
        (0..=u8::MAX).take(n_bytes).map(|byte| (char_of(byte).to_string(), json!(byte))).collect();
    let added: Vec<Value> = (n_bytes..vocab_size)
        .zip(special)
        .map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []
        }
    })
}

/// Builds the matching `tokenizer_config.json`: an optional end token and a plain `ChatML`
/// template.
#[must_use]
pub fn byte_tokenizer_config_json(eos_token: Option<&str>) -> Value {
    json!({
        "add_bos_token": false,
        "bos_token": null,
        "eos_token": eos_token,
        "chat_template": CHATML,
        "tokenizer_class": "PreTrainedTokenizerFast"
    })
}

const CHATML: &str = "\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_gpt2s_and_reversible() {
        let mut seen = std::collections::BTreeSet::new();
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
            assert!(seen.insert(char_of(byte)));
        }
        for (byte, expected) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (0, 'Ā'), (0x7f, 'ġ'), (0xad, 'Ń')]
        {
            assert_eq!(char_of(byte), expected, "{byte}");
        }
        for character in [' ', '\n', '\u{7f}', '\u{ad}', '\u{144}', '語'] {
            assert_eq!(byte_of(character), None, "{character:?}");
        }
    }
}
