// Access to queries, keys and values of attention: see attend_tile.wgsl. KEY_FOURS and VALUE_FOURS
// are columns in units of four. With FROM_ROWS, keys and values of this dispatch's rows are taken
// from the rows, and stored by it.

const N_HEADS: u32 = N_KV_HEADS * GROUP;
const APPENDED_FOURS: u32 = max(KEY_FOURS, VALUE_FOURS);

// Returns the first position that a row at `position` sees.
fn first_seen(position: u32) -> u32 {
    return position + 1u - min(position + 1u, params.window);
}

// Returns the number of keys that a row at `position` has before it and at its own place.
fn end_of(position: u32) -> u32 {
    return position + 1u;
}

// Returns the position of a row's key.
fn position_of_key(part: Part, part_row: u32, key: u32) -> u32 {
    return key;
}

fn sink_of(head: u32) -> f32 {
    if HAS_SINKS {
        return vectors[params.sinks + head];
    }
    return 0.0;
}

fn query4(row: u32, head: u32, four: u32) -> vec4<f32> {
    return four_of(params.q, row, head, four, KEY_DIM);
}

fn stored_key4(place: u32, kv_head: u32, four: u32) -> vec4<f32> {
    return first[(place * N_KV_HEADS + kv_head) * KEY_FOURS + four];
}

fn key4(part: Part, position: u32, kv_head: u32, four: u32) -> vec4<f32> {
    if FROM_ROWS && position >= part.position {
        let row = part.first_row + position - part.position;
        return four_of(params.k, row, kv_head, four, KEY_DIM);
    }
    return stored_key4(stored_place(part, position), kv_head, four);
}

fn stored_value4(place: u32, kv_head: u32, four: u32) -> vec4<f32> {
    return second[(place * N_KV_HEADS + kv_head) * VALUE_FOURS + four];
}

fn value4(part: Part, position: u32, kv_head: u32, four: u32) -> vec4<f32> {
    if FROM_ROWS && position >= part.position {
        let row = part.first_row + position - part.position;
        return four_of(params.v, row, kv_head, four, VALUE_DIM);
    }
    return stored_value4(stored_place(part, position), kv_head, four);
}

// Stores a row of a part.
fn append(part: Part, part_row: u32, kv_head: u32, four: u32) {
    if part_row >= part.n_rows {
        return;
    }
    let row = part.first_row + part_row;
    let place = stored_place(part, part.position + part_row) * N_KV_HEADS + kv_head;
    if four < KEY_FOURS {
        first[place * KEY_FOURS + four] = four_of(params.k, row, kv_head, four, KEY_DIM);
    }
    if four < VALUE_FOURS {
        second[place * VALUE_FOURS + four] = four_of(params.v, row, kv_head, four, VALUE_DIM);
    }
}

fn put(part: Part, part_row: u32, head: u32, col: u32, value: f32) {
    if col >= VALUE_DIM {
        return;
    }
    let row = part.first_row + part_row;
    var gated = value;
    if HAS_GATE {
        gated *= sigmoid(ws[place_of(params.gate, row, head) + col]);
    }
    ws[place_of(params.out, row, head) + col] = gated;
}
