// out = residual + (weighted down . inner of the experts of one row, ascending + shared): outputs
// along x. RANKS experts are computed at once, by neighbouring teams of TEAM invocations, each with
// OUTS outputs, and what AHEAD such rounds read is on its way together; what each gave is added up in the order of `routes`, as `combine.wgsl` does.

struct Params {
    step: Step,
    // Head `k` is what gate and up of rank `k` gave.
    inner: View,
    n_words: u32,
    n_outputs: u32,
    n_cols: u32,
    codes: u32,
    scales: u32,
    biases: u32,
    shared_out: u32,
    shared_gate: u32,
    residual: u32,
    out: u32,
}

const N_TEAMS: u32 = N_INVOCATIONS / TEAM;
const N_UNITS: u32 = TEAM * UNITS_EACH;
const N_ROUNDS: u32 = (TOP_K + RANKS - 1u) / RANKS;
// Outputs of a workgroup.
const GROUP_OUTS: u32 = N_TEAMS / RANKS * OUTS;
const N_PARTS: u32 = TEAM / WIDTH;
const N_QUADS: u32 = UNIT_QUADS * N_UNITS;
// Quads of the inner values that an invocation brings of a round.
const INPUTS_EACH: u32 = (RANKS * N_QUADS + N_INVOCATIONS - 1u) / N_INVOCATIONS;
const N_CHUNKS: u32 = UNITS_EACH * OUTS;

var<workgroup> x_block: array<vec4<f32>, RANKS * UNIT_QUADS * N_UNITS>;
var<workgroup> parts: array<f32, TOP_K * GROUP_OUTS * N_PARTS>;
var<private> inputs: array<vec4<f32>, AHEAD * INPUTS_EACH>;
var<private> matrices: array<Matrix, AHEAD>;
var<private> chunks: array<Chunk, AHEAD * N_CHUNKS>;
var<private> affines: array<Affine, AHEAD * N_CHUNKS>;
// What the output that this invocation adds up begins with, and the shared expert's part.
var<private> residual: f32;
var<private> of_shared: f32;
var<private> gate_of_shared: f32;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

fn down_of(rank: u32) -> Matrix {
    let slot = slots[params.step.place + routes[rank].x];
    let first = word_of_slot(slot, params.n_words);
    return Matrix(
        first + params.codes,
        first + params.scales,
        first + params.biases,
        params.n_outputs,
        params.n_cols,
    );
}

fn inner_value(at: u32, col: u32) -> f32 {
    let is_there = col < params.n_cols;
    return select(0.0, value_at(select(0u, at + col, is_there)), is_there);
}

fn inner_quad(at: u32, col: u32) -> vec4<f32> {
    if IS_QUADS {
        let is_there = col < params.n_cols;
        return select(vec4<f32>(), quad_at(select(0u, at + col, is_there)), is_there);
    }
    return vec4<f32>(
        inner_value(at, col),
        inner_value(at, col + 1u),
        inner_value(at, col + 2u),
        inner_value(at, col + 3u),
    );
}

// Reads the inner values of RANKS experts.
fn read_inputs(invocation: u32, round: u32, ahead: u32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        let rank = min(round * RANKS + i / N_QUADS, TOP_K - 1u);
        let at = place_of(params.inner, 0u, rank);
        inputs[ahead * INPUTS_EACH + own] = inner_quad(at, i % N_QUADS * 4u);
    }
}

fn share_inputs(invocation: u32, ahead: u32) {
    for (var own = 0u; own < INPUTS_EACH; own++) {
        let i = own * N_INVOCATIONS + invocation;
        let quad = i % N_QUADS;
        let place = (i / N_QUADS * UNIT_QUADS + quad % UNIT_QUADS) * N_UNITS + quad / UNIT_QUADS;
        if i < RANKS * N_QUADS {
            x_block[place] = inputs[ahead * INPUTS_EACH + own];
        }
    }
}

fn load(ahead: u32, first_out: u32, lane: u32) {
    let matrix = matrices[ahead];
    let last_unit = n_units_of(matrix) - 1u;
    for (var i = 0u; i < UNITS_EACH; i++) {
        let unit = min(i * TEAM + lane, last_unit);
        for (var out = 0u; out < OUTS; out++) {
            let row = min(first_out + out, matrix.n_rows - 1u);
            let place = ahead * N_CHUNKS + i * OUTS + out;
            chunks[place] = load_chunk(KIND, matrix, row, unit);
            affines[place] = affine_of(KIND, matrix, row, unit);
        }
    }
}

// The order of sums is that of `add_products` in `matvec.wgsl`.
fn add_products(
    ahead: u32,
    first_out: u32,
    lane: u32,
    own: u32,
    sums: ptr<function, array<f32, OUTS>>,
) {
    let matrix = matrices[ahead];
    let last_unit = n_units_of(matrix) - 1u;
    for (var i = 0u; i < UNITS_EACH; i++) {
        let unit = min(i * TEAM + lane, last_unit);
        var dots: array<f32, OUTS>;
        var x_sum = 0.0;
        for (var quad = 0u; quad < UNIT_QUADS; quad++) {
            let x = x_block[(own * UNIT_QUADS + quad) * N_UNITS + i * TEAM + lane];
            x_sum += (x.x + x.y) + (x.z + x.w);
            for (var out = 0u; out < OUTS; out++) {
                let row = min(first_out + out, matrix.n_rows - 1u);
                let chunk = chunks[ahead * N_CHUNKS + i * OUTS + out];
                let w = quad_of(KIND, matrix, row, unit, chunk, quad);
                dots[out] = dot_onto(w, x, dots[out]);
            }
        }
        for (var out = 0u; out < OUTS; out++) {
            let affine = affines[ahead * N_CHUNKS + i * OUTS + out];
            (*sums)[out] = fma(affine.scale, dots[out], (*sums)[out]);
            if has_bias(KIND) {
                (*sums)[out] = fma(affine.bias, x_sum, (*sums)[out]);
            }
        }
    }
}

fn total_of(rank: u32, out: u32) -> f32 {
    var total = 0.0;
    for (var part = 0u; part < N_PARTS; part++) {
        total += parts[(rank * GROUP_OUTS + out) * N_PARTS + part];
    }
    return total;
}

fn combined(out: u32) -> f32 {
    var sum = 0.0;
    for (var rank = 0u; rank < TOP_K; rank++) {
        sum = fma(bitcast<f32>(routes[rank].y), total_of(rank, out), sum);
    }
    if HAS_SHARED {
        var factor = 1.0;
        if HAS_GATE {
            factor = sigmoid(gate_of_shared);
        }
        sum = fma(factor, of_shared, sum);
    }
    return residual + sum;
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let own = team % RANKS;
    let own_out = team / RANKS * OUTS;
    let first_out = group.x * GROUP_OUTS + own_out;
    // Outputs of a workgroup are fewer than its invocations.
    let idx = group.x * GROUP_OUTS + invocation;
    let has_out = invocation < GROUP_OUTS && idx < params.n_outputs;
    for (var round = 0u; round < N_ROUNDS; round += AHEAD) {
        for (var ahead = 0u; ahead < AHEAD; ahead++) {
            matrices[ahead] = down_of(min((round + ahead) * RANKS + own, TOP_K - 1u));
            read_inputs(invocation, round + ahead, ahead);
        }
        for (var ahead = 0u; ahead < AHEAD; ahead++) {
            load(ahead, first_out, lane);
        }
        if round == 0u && has_out {
            residual = value_at(params.residual + idx);
            if HAS_SHARED {
                of_shared = value_at(params.shared_out + idx);
                gate_of_shared = value_at(params.shared_gate);
            }
        }
        for (var ahead = 0u; ahead < AHEAD; ahead++) {
            let rank = (round + ahead) * RANKS + own;
            workgroupBarrier();
            share_inputs(invocation, ahead);
            workgroupBarrier();
            var sums: array<f32, OUTS>;
            add_products(ahead, first_out, lane, own, &sums);
            for (var out = 0u; out < OUTS; out++) {
                let part = sum_of_neighbours(sums[out]);
                if lane % WIDTH == 0u && rank < TOP_K {
                    parts[(rank * GROUP_OUTS + own_out + out) * N_PARTS + lane / WIDTH] = part;
                }
            }
        }
    }
    workgroupBarrier();
    if has_out {
        set_value(params.out + idx, combined(invocation));
    }
}
