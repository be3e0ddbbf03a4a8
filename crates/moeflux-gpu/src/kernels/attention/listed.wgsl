// The positions that a row attends to, if they are chosen: see `ChosenPositions`. N_CHOSEN are the
// columns of a list, 0 if there is none, and BLOCK the positions of a block.

// Returns whether a row at `position` attends to the positions in its list. Its keys are then
// counted in the list.
fn is_listed(position: u32) -> bool {
    return N_CHOSEN > 0u && position >= N_CHOSEN;
}

fn listed_at(part: Part, part_row: u32, key: u32) -> f32 {
    return ws[place_of(params.list, part.first_row + part_row, 0u) + key];
}

// Returns the number of keys that a row at `position` has before it and at its own place.
fn end_of(position: u32) -> u32 {
    let n_listed = N_CHOSEN / BLOCK * BLOCK + (position + 1u) % BLOCK;
    return select(position + 1u, n_listed, is_listed(position));
}

// Returns the position of a row's key. A broken list may hold any number.
fn position_of_key(part: Part, part_row: u32, key: u32) -> u32 {
    let position = part.position + part_row;
    if is_listed(position) {
        return min(u32(max(listed_at(part, part_row, key), 0.0)), position);
    }
    return key;
}

// Returns an output of a row, or NaN if the choice of its positions failed.
fn value_of_choice(part: Part, part_row: u32, value: f32) -> f32 {
    if is_listed(part.position + part_row) {
        let listed = listed_at(part, part_row, 0u);
        if is_nan(listed) {
            return listed;
        }
    }
    return value;
}
