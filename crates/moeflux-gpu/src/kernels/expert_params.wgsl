// What the kernels of routed experts share. Pair `row * top_k + rank` is what one row has of one of
// its experts; `x` and `out` have a head for each rank.

const ABSENT: f32 = -1.0;

// Of four words, so that what lies behind it in workgroup memory begins where cooperative matrices
// can be loaded from: at multiples of 16 bytes.
var<workgroup> shared_slot: vec4<u32>;

fn place_of_pair(view: View, pair: u32) -> u32 {
    return place_of(view, params.step.first_row + pair / params.top_k, pair % params.top_k);
}

// The product of a pair's expert with its bias.
fn with_bias(bias: u32, pair: u32, idx: u32, product: f32) -> f32 {
    if !HAS_BIASES {
        return product;
    }
    let expert = routes[params.step.first_row * params.top_k + pair].x;
    return product + vectors[bias + expert * params.n_outputs + idx];
}

// The slot of an expert, the same for the whole workgroup; `expert` is asked of its first
// invocation.
fn slot_of(invocation: u32, expert: u32) -> u32 {
    if invocation == 0u {
        shared_slot.x = select(slots[params.step.place + expert], NONE, expert == NONE);
    }
    return workgroupUniformLoad(&shared_slot).x;
}

fn slot_of_pair(invocation: u32, pair: u32) -> u32 {
    return slot_of(invocation, routes[params.step.first_row * params.top_k + pair].x);
}

fn first_matrix(slot: u32) -> Matrix {
    let first = word_of_slot(slot, params.n_words);
    return Matrix(
        first + params.codes,
        first + params.scales,
        first + params.biases,
        params.n_outputs,
        params.n_cols,
    );
}
