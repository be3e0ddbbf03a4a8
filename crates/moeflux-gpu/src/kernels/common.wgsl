// What all kernels share. A kernel's `Params` begins with `step: Step`; the fields after it are
// written from its Rust struct: see `params!`. `ws`, `batch`, `routes`, `slots` and `vectors` are
// always bound.

// Set anew for each dispatch. Rows of the dispatch are `0 .. n_rows`; the row of the batch, and of
// all buffers of the workspace, is `first_row` more. Over a state (see parts.wgsl) `n_rows` is the
// number of parts, and `first_row` says what attention does with many positions (attend_common).
struct Step {
    first_row: u32,
    n_rows: u32,
    // Where the rows of the batch begin in `batch`.
    batch_at: u32,
    // Over a state: where the parts begin in `batch`. Over experts: where their table begins in
    // `slots`.
    place: u32,
}

// See `View` in params.rs.
struct View {
    first: u32,
    row_stride: u32,
    head_stride: u32,
}

const NONE: u32 = 0xffffffffu;

// Place of a head's first value in `ws`, in values.
fn place_of(view: View, row: u32, head: u32) -> u32 {
    return view.first + row * view.row_stride + head * view.head_stride;
}

fn token_of(row: u32) -> u32 {
    return batch[params.step.batch_at + row].x;
}

fn position_of(row: u32) -> u32 {
    return batch[params.step.batch_at + row].y;
}

// Row of the batch whose logits are wanted as number `output`.
fn row_of_output(output: u32) -> u32 {
    return batch[params.step.batch_at + output].w;
}

// The root that a norm divides by: NaN where squares have overflowed, since a division by infinity
// would turn broken values into zeros.
fn root_of(squares: f32) -> f32 {
    let bits = bitcast<u32>(sqrt(squares));
    return bitcast<f32>(select(bits, bits | 0x00400000u, (bits & 0x7f800000u) == 0x7f800000u));
}
