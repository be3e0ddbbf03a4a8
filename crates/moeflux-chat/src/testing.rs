//! A tokenizer of bytes, for the tests of several modules.

use moeflux::Tokenizer;
use moeflux::provider::text::byte_tokenizer_json;
use moeflux_testing::temp_dir::TempDir;

/// Returns a tokenizer of bytes and of these markers.
pub(crate) fn byte_tokenizer(markers: &[&str]) -> Tokenizer {
    let folder = TempDir::new();
    let n_tokens = 256 + markers.len();
    folder.write("tokenizer.json", byte_tokenizer_json(n_tokens, markers).to_string());
    Tokenizer::open(folder.path(), n_tokens).unwrap()
}
