// Sets the offsets of the inputs of a tile of pairs in `ws`.
fn find_inputs(invocation: u32, tile: u32) {
    for (var i = 0u; i < PER_LANE; i++) {
        let pair = pair_of(tile, input_of(invocation, i));
        x_at[i] = select(place_of_pair(params.x, pair), NONE, pair == NONE);
    }
}
