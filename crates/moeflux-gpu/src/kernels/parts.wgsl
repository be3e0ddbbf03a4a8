// What kernels over a state are told of sessions: parts of the batch. All of a dispatch's parts are
// of sessions whose pieces lie in the bound buffers.

// Rows of one session that follow each other.
struct Part {
    // Of the batch.
    first_row: u32,
    n_rows: u32,
    // Of the first row.
    position: u32,
    // Where the list of the session's pieces begins in `pieces`.
    list_at: u32,
    // Which copy of a recurrent layer's state it finds, and which it leaves.
    found: u32,
    left: u32,
}

// Part `idx` of the dispatch.
fn part_of(idx: u32) -> Part {
    let at = params.step.place + 2u * idx;
    let rows = batch[at];
    let copies = batch[at + 1u];
    return Part(rows.x, rows.y, rows.z, rows.w, copies.x, copies.y);
}

// Where a position of a part's session lies, in positions of the bound buffers.
fn stored_place(part: Part, position: u32) -> u32 {
    return pieces[part.list_at + position / PIECE] * PIECE + position % PIECE;
}
