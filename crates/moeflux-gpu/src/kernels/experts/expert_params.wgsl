// Shared by the kernels of routed experts. Pair `row * top_k + rank` is a row with one of its
// experts; `x` and `out` have a head for each rank.

const ABSENT: f32 = -1.0;

// Four words, so that the workgroup memory after it begins at a multiple of 16 bytes, from which
// cooperative matrices can be loaded.
var<workgroup> shared_slot: vec4<u32>;

fn place_of_pair(view: View, pair: u32) -> u32 {
    return place_of(view, params.step.first_row + pair / params.top_k, pair % params.top_k);
}

// Adds the expert's bias to the product of a pair.
fn with_bias(bias: u32, pair: u32, idx: u32, product: f32) -> f32 {
    if !HAS_BIASES {
        return product;
    }
    let expert = routes[params.step.first_row * params.top_k + pair].x;
    return product + vectors[bias + expert * params.n_outputs + idx];
}

// Returns the slot of an expert, uniform over the workgroup. The first invocation's `expert`
// counts.
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
