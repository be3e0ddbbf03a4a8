// Description of sessions for kernels over a state, as parts of the batch. All parts of a dispatch
// are of sessions whose pages are in the bound buffers.

// Consecutive rows of one session.
struct Part {
    // Row of the batch.
    first_row: u32,
    n_rows: u32,
    // Position of the first row.
    position: u32,
    // Offset of the session's list of pages in `pages`.
    list_at: u32,
    // Copies of a recurrent layer's state that are read and written.
    found: u32,
    left: u32,
}

// Returns part `idx` of the dispatch.
fn part_of(idx: u32) -> Part {
    let at = params.step.place + 2u * idx;
    let rows = batch[at];
    let copies = batch[at + 1u];
    return Part(rows.x, rows.y, rows.z, rows.w, copies.x, copies.y);
}

// Returns the place of a position of a part's session, in positions of the bound buffers.
fn stored_place(part: Part, position: u32) -> u32 {
    return pages[part.list_at + position / PAGE] * PAGE + position % PAGE;
}
