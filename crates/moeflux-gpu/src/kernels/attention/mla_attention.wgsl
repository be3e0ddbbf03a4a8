// Access to queries, keys and values of latent attention: see attend_tile.wgsl. A key is the
// latent, VALUE_FOURS times four columns, followed by the rotated key; a value is the latent. All
// heads share them.

const N_HEADS: u32 = GROUP;
const ROPE_FOURS: u32 = KEY_FOURS - VALUE_FOURS;
const APPENDED_FOURS: u32 = KEY_FOURS;

fn first_seen(position: u32) -> u32 {
    return 0u;
}

// Returns whether a row at `position` attends to the positions in its list. Its keys are then
// counted in the list.
fn is_listed(position: u32) -> bool {
    return N_CHOSEN > 0u && position >= N_CHOSEN;
}

fn listed_at(part: Part, part_row: u32, key: u32) -> f32 {
    return ws[place_of(params.list, part.first_row + part_row, 0u) + key];
}

// Returns the number of keys of a row at `position`.
fn end_of(position: u32) -> u32 {
    return select(position + 1u, N_CHOSEN, is_listed(position));
}

// Returns the position of a row's key. A broken list may hold any number.
fn position_of_key(part: Part, part_row: u32, key: u32) -> u32 {
    let position = part.position + part_row;
    if is_listed(position) {
        return min(u32(max(listed_at(part, part_row, key), 0.0)), position);
    }
    return key;
}

fn sink_of(head: u32) -> f32 {
    return 0.0;
}

fn query4(row: u32, head: u32, four: u32) -> vec4<f32> {
    if four < VALUE_FOURS {
        return four_of(params.q_latent, row, head, four, LATENT_DIM);
    }
    return four_of(params.q_rope, row, head, four - VALUE_FOURS, ROPE_DIM);
}

// Returns the key of a row.
fn row4(row: u32, four: u32) -> vec4<f32> {
    if four < VALUE_FOURS {
        return four_of(params.latent, row, 0u, four, LATENT_DIM);
    }
    return four_of(params.k_rope, row, 0u, four - VALUE_FOURS, ROPE_DIM);
}

fn stored_key4(place: u32, kv_head: u32, four: u32) -> vec4<f32> {
    if four < VALUE_FOURS {
        return first[place * VALUE_FOURS + four];
    }
    return second[place * ROPE_FOURS + four - VALUE_FOURS];
}

fn key4(part: Part, position: u32, kv_head: u32, four: u32) -> vec4<f32> {
    if FROM_ROWS && position >= part.position {
        return row4(part.first_row + position - part.position, four);
    }
    return stored_key4(stored_place(part, position), kv_head, four);
}

fn stored_value4(place: u32, kv_head: u32, four: u32) -> vec4<f32> {
    return first[place * VALUE_FOURS + four];
}

fn value4(part: Part, position: u32, kv_head: u32, four: u32) -> vec4<f32> {
    return key4(part, position, kv_head, four);
}

// Stores a row of a part.
fn append(part: Part, part_row: u32, kv_head: u32, four: u32) {
    if part_row >= part.n_rows {
        return;
    }
    let value = row4(part.first_row + part_row, four);
    let place = stored_place(part, part.position + part_row);
    if four < VALUE_FOURS {
        first[place * VALUE_FOURS + four] = value;
    } else {
        second[place * ROPE_FOURS + four - VALUE_FOURS] = value;
    }
}

fn put(part: Part, part_row: u32, head: u32, col: u32, value: f32) {
    if col >= LATENT_DIM {
        return;
    }
    let at = place_of(params.out, part.first_row + part_row, head) + col;
    ws[at] = value;
    if is_listed(part.position + part_row) {
        let listed = listed_at(part, part_row, 0u);
        if is_nan(listed) {
            ws[at] = listed;
        }
    }
}
