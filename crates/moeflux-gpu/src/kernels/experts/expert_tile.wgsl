// Access to tiles of pairs, as written by `expert_pairs.wgsl`.

fn slot_of_tile(invocation: u32, tile: u32) -> u32 {
    let expert = value_at(params.tiles + tile);
    return slot_of(invocation, select(u32(max(expert, 0.0)), NONE, expert < 0.0));
}

// Returns pair `idx` of a tile, or NONE.
fn pair_of(tile: u32, idx: u32) -> u32 {
    let pair = value_at(params.pairs + tile * TILE_INPUTS + idx);
    return select(u32(max(pair, 0.0)), NONE, pair < 0.0);
}
