// Shared by all kernels. A kernel's `Params` begins with `step: Step`; the fields after it are
// generated from its Rust struct: see `params!`. `ws`, `batch`, `routes`, `slots` and `vectors` are
// always bound.

// Set for each dispatch. Rows of the dispatch are `0 .. n_rows`; add `first_row` for the row of the
// batch and of all workspace buffers. Over a state (see parts.wgsl) `n_rows` is the number of
// parts, and `first_row` tells attention how many positions are split (attend_common).
struct Step {
    first_row: u32,
    n_rows: u32,
    // Offset of the batch's rows in `batch`.
    batch_at: u32,
    // Over a state: offset of the parts in `batch`. Over experts: offset of their table in `slots`.
    place: u32,
}

// See `View` in params.rs.
struct View {
    first: u32,
    row_stride: u32,
    head_stride: u32,
}

const NONE: u32 = 0xffffffffu;

// Returns the offset of a head's first value in `ws`, in values.
fn place_of(view: View, row: u32, head: u32) -> u32 {
    return view.first + row * view.row_stride + head * view.head_stride;
}

fn token_of(row: u32) -> u32 {
    return batch[params.step.batch_at + row].x;
}

fn position_of(row: u32) -> u32 {
    return batch[params.step.batch_at + row].y;
}

// Returns the batch row of logits number `output`.
fn row_of_output(output: u32) -> u32 {
    return batch[params.step.batch_at + output].w;
}

// Returns the root that a norm divides by. NaN if the squares have overflowed, since a division by
// infinity would turn broken values into zeros.
fn root_of(squares: f32) -> f32 {
    let bits = bitcast<u32>(sqrt(squares));
    return bitcast<f32>(select(bits, bits | 0x00400000u, (bits & 0x7f800000u) == 0x7f800000u));
}
