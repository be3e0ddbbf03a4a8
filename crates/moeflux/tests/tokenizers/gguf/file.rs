//! Writes the metadata of a GGUF file, as llama.cpp's converter does.

use serde_json::Value;

/// Keys with their values, without tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pairs: Vec<(String, Vec<u8>)>,
    n_tokens: usize,
}

impl File {
    pub(super) fn new(model: &str, pre: &str) -> Self {
        Self::default().text("tokenizer.ggml.model", model).text("tokenizer.ggml.pre", pre)
    }

    /// Of a byte-level `tokenizer.json`, with rows after the last token.
    pub(super) fn of_json(pre: &str, json: &Value) -> Self {
        let mut tokens = by_id(&json["model"]["vocab"]);
        let mut types = vec![1; tokens.len()];
        for added in json["added_tokens"].as_array().unwrap() {
            tokens.push(added["content"].as_str().unwrap().to_owned());
            types.push(if added["special"] == true { 3 } else { 4 });
        }
        for _ in 0..5 {
            tokens.push(format!("[PAD{}]", tokens.len()));
            types.push(5);
        }
        let merges: Vec<String> = json["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|merge| merge.as_str().unwrap().to_owned())
            .collect();
        Self::new("gpt2", pre)
            .texts("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &merges)
    }

    /// Of the `tokenizer.json` of a sentencepiece vocabulary, with scores instead of merges.
    pub(super) fn of_pieces(json: &Value) -> Self {
        let tokens = by_id(&json["model"]["vocab"]);
        let merges = json["model"]["merges"].as_array().unwrap();
        let made: Vec<String> =
            merges.iter().map(|merge| merge.as_str().unwrap().replacen(' ', "", 1)).collect();
        let place = |text: &String| made.iter().position(|it| it == text).unwrap_or(made.len());
        #[expect(clippy::cast_precision_loss, reason = "places are small")]
        let scores: Vec<f32> = tokens.iter().map(|text| -(place(text) as f32)).collect();
        let types: Vec<i32> = tokens
            .iter()
            .map(|text| match text.as_str() {
                "<unk>" => 2,
                "<s>" | "</s>" => 3,
                _ if text.starts_with("<0x") => 6,
                _ => 1,
            })
            .collect();
        Self::new("llama", "default")
            .texts("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &types)
            .floats("tokenizer.ggml.scores", &scores)
            .id("tokenizer.ggml.unknown_token_id", 0)
            .id("tokenizer.ggml.bos_token_id", 1)
            .id("tokenizer.ggml.eos_token_id", 2)
    }

    pub(super) fn without(mut self, key: &str) -> Self {
        self.pairs.retain(|(known, _)| known != key);
        self
    }

    pub(super) fn text(self, key: &str, text: &str) -> Self {
        self.with(key, 8, &string(text))
    }

    pub(super) fn id(self, key: &str, id: u32) -> Self {
        self.with(key, 4, &id.to_le_bytes())
    }

    pub(super) fn integer(self, key: &str, value: i32) -> Self {
        self.with(key, 5, &value.to_le_bytes())
    }

    pub(super) fn float(self, key: &str, value: f32) -> Self {
        self.with(key, 6, &value.to_le_bytes())
    }

    pub(super) fn flag(self, key: &str, value: bool) -> Self {
        self.with(key, 7, &[u8::from(value)])
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    pub(super) fn texts<T: AsRef<str>>(mut self, key: &str, texts: &[T]) -> Self {
        if key == "tokenizer.ggml.tokens" {
            self.n_tokens = texts.len();
        }
        let texts: Vec<Vec<u8>> = texts.iter().map(|text| string(text.as_ref())).collect();
        self.array(key, 8, texts.len(), &texts.concat())
    }

    pub(super) fn integers(self, key: &str, values: &[i32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &bytes)
    }

    pub(super) fn floats(self, key: &str, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 6, values.len(), &bytes)
    }

    fn array(self, key: &str, kind: u32, n: usize, bytes: &[u8]) -> Self {
        let n = (n as u64).to_le_bytes();
        self.with(key, 9, &[&kind.to_le_bytes(), &n[..], bytes].concat())
    }

    /// Replaces the key's value, if there is one.
    fn with(self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut file = self.without(key);
        file.pairs.push((key.to_owned(), [&kind.to_le_bytes(), value].concat()));
        file
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            bytes.extend(string(key));
            bytes.extend(value);
        }
        bytes
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn by_id(vocab: &Value) -> Vec<String> {
    let vocab = vocab.as_object().unwrap();
    let mut texts: Vec<(u64, &String)> =
        vocab.iter().map(|(text, id)| (id.as_u64().unwrap(), text)).collect();
    texts.sort_unstable();
    texts.into_iter().map(|(_, text)| text.clone()).collect()
}
