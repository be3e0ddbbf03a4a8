// Experts that lie in the device's memory, `weights`, or in the host's, `far`. Slots of the latter
// are marked by a bit, which stays in all places that are reckoned from the slot's first: no
// buffer has so many words.

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

// Where a slot of so many words begins.
fn word_of_slot(slot: u32, n_words: u32) -> u32 {
    return (slot & ~FAR_SLOT) * n_words | (slot & FAR_SLOT);
}

// So many rows use an expert: what is used most is brought near.
fn note_use(expert: u32, n_rows: u32) {
    atomicAdd(&uses[expert], n_rows);
}
