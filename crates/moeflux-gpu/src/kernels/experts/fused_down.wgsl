// out = residual + (weighted down . inner of the experts of a row, ascending + shared): outputs
// along x, rows along y. RANKS experts are computed at once, by neighbouring teams of TEAM
// invocations, each with OUTS outputs; their outputs are added up in the order of `routes`, as in
// `combine.wgsl`.

// The batch row of this workgroup.
var<private> row: u32;

const N_TEAMS: u32 = N_INVOCATIONS / TEAM;
const N_UNITS: u32 = TEAM * UNITS_EACH;
const N_ROUNDS: u32 = (TOP_K + RANKS - 1u) / RANKS;
// Outputs of a workgroup.
const GROUP_OUTS: u32 = N_TEAMS / RANKS * OUTS;
const N_PARTS: u32 = TEAM / WIDTH;

var<workgroup> x_block: array<vec4<f32>, RANKS * UNIT_QUADS * N_UNITS>;
var<workgroup> parts: array<f32, TOP_K * GROUP_OUTS * N_PARTS>;
var<private> chunks: array<Chunk, UNITS_EACH * OUTS>;
var<private> affines: array<Affine, UNITS_EACH * OUTS>;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

fn down_of(rank: u32) -> Matrix {
    let slot = slots[params.step.place + routes[row * TOP_K + rank].x];
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
    return select(0.0, ws[select(0u, at + col, is_there)], is_there);
}

// Loads the inner values of RANKS experts from `first_rank` on.
fn stage(invocation: u32, first_rank: u32) {
    const N_QUADS: u32 = UNIT_QUADS * N_UNITS;
    for (var i = invocation; i < RANKS * N_QUADS; i += N_INVOCATIONS) {
        let own = i / N_QUADS;
        let quad = i % N_QUADS;
        let at = place_of(params.inner, row, min(first_rank + own, TOP_K - 1u));
        let place = (own * UNIT_QUADS + quad % UNIT_QUADS) * N_UNITS + quad / UNIT_QUADS;
        x_block[place] = vec4<f32>(
            inner_value(at, quad * 4u),
            inner_value(at, quad * 4u + 1u),
            inner_value(at, quad * 4u + 2u),
            inner_value(at, quad * 4u + 3u),
        );
    }
}

fn load(matrix: Matrix, first_out: u32, lane: u32) {
    let last_unit = n_units_of(matrix) - 1u;
    for (var i = 0u; i < UNITS_EACH; i++) {
        let unit = min(i * TEAM + lane, last_unit);
        for (var out = 0u; out < OUTS; out++) {
            let row = min(first_out + out, matrix.n_rows - 1u);
            chunks[i * OUTS + out] = load_chunk(KIND, matrix, row, unit);
            affines[i * OUTS + out] = affine_of(KIND, matrix, row, unit);
        }
    }
}

// The order of sums is that of `add_products` in `matvec.wgsl`.
fn add_products(
    matrix: Matrix,
    first_out: u32,
    lane: u32,
    own: u32,
    sums: ptr<function, array<f32, OUTS>>,
) {
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
                let w = quad_of(KIND, matrix, row, unit, chunks[i * OUTS + out], quad);
                dots[out] = dot_onto(w, x, dots[out]);
            }
        }
        for (var out = 0u; out < OUTS; out++) {
            let affine = affines[i * OUTS + out];
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

fn combined(idx: u32, out: u32) -> f32 {
    // Always 0, but a driver does not know. Of two products whose sum is known to begin with 0 it
    // may round either first; the other kernel makes it round the first.
    var sum = f32(params.step.first_row);
    for (var rank = 0u; rank < TOP_K; rank++) {
        sum = fma(bitcast<f32>(routes[row * TOP_K + rank].y), total_of(rank, out), sum);
    }
    if HAS_SHARED {
        var factor = 1.0;
        if HAS_GATE {
            factor = sigmoid(ws[place_of(params.shared_gate, row, 0u)]);
        }
        sum = fma(factor, ws[place_of(params.shared_out, row, 0u) + idx], sum);
    }
    return ws[place_of(params.residual, row, 0u) + idx] + sum;
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(
    @builtin(local_invocation_index) invocation: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    row = params.step.first_row + group.y;
    let team = invocation / TEAM;
    let lane = invocation % TEAM;
    let own = team % RANKS;
    let own_out = team / RANKS * OUTS;
    let first_out = group.x * GROUP_OUTS + own_out;
    for (var round = 0u; round < N_ROUNDS; round++) {
        let rank = round * RANKS + own;
        let matrix = down_of(min(rank, TOP_K - 1u));
        load(matrix, first_out, lane);
        workgroupBarrier();
        stage(invocation, round * RANKS);
        workgroupBarrier();
        var sums: array<f32, OUTS>;
        add_products(matrix, first_out, lane, own, &sums);
        for (var out = 0u; out < OUTS; out++) {
            let part = sum_of_neighbours(sums[out]);
            if lane % WIDTH == 0u && rank < TOP_K {
                parts[(rank * GROUP_OUTS + own_out + out) * N_PARTS + lane / WIDTH] = part;
            }
        }
    }
    workgroupBarrier();
    for (var out = invocation; out < GROUP_OUTS; out += N_INVOCATIONS) {
        let idx = group.x * GROUP_OUTS + out;
        if idx < params.n_outputs {
            ws[place_of(params.out, row, 0u) + idx] = combined(idx, out);
        }
    }
}
