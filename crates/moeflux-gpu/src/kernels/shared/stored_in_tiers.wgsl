// Experts in device memory, `weights`, or in host memory, `far`. A bit marks slots of the latter.
// It stays set in all offsets computed from the slot's first; no buffer has enough words to use it.

const FAR_SLOT: u32 = 0x80000000u;
const FAR_QUAD: u32 = FAR_SLOT >> 2u;

fn stored_quad(at: u32) -> vec4<u32> {
    if (at & FAR_QUAD) != 0u {
        return far[at ^ FAR_QUAD];
    }
    return weights[at];
}

fn stored_word(at: u32) -> u32 {
    if (at & FAR_SLOT) != 0u {
        return far[(at ^ FAR_SLOT) >> 2u][at & 3u];
    }
    return weights[at >> 2u][at & 3u];
}

// Returns the offset of a slot of `n_words` words.
fn word_of_slot(slot: u32, n_words: u32) -> u32 {
    return (slot & ~FAR_SLOT) * n_words | (slot & FAR_SLOT);
}

// Counts the use of an expert by `n_rows` rows: the most used experts are moved near.
fn note_use(expert: u32, n_rows: u32) {
    atomicAdd(&uses[expert], n_rows);
}
