// Weights in one buffer. Quads and words have separate functions so that a word is read alone.

fn stored_quad(at: u32) -> vec4<u32> {
    return weights[at];
}

fn stored_word(at: u32) -> u32 {
    return weights[at >> 2u][at & 3u];
}

// Returns the offset of a slot of `n_words` words.
fn word_of_slot(slot: u32, n_words: u32) -> u32 {
    return slot * n_words;
}

fn note_use(expert: u32, n_rows: u32) {}
