// Sets the offsets of the inputs of a tile of pairs in `ws`, in quads.
fn find_quads(invocation: u32, tile: u32) {
    for (var i = 0u; i < X_QUADS; i++) {
        let pair = pair_of(tile, input_of(invocation, i));
        x_at[i] = select(place_of_pair(params.x, pair) / 4u, NONE, pair == NONE);
    }
}
