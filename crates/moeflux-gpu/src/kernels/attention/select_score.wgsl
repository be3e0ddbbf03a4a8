// Scores of positions for the rows of a part that choose some: N_LANES positions along x, rows
// along y. An invocation has a position. QUERIES heads at a time are in workgroup memory.

var<workgroup> queries: array<vec4<f32>, QUERIES * KEY_FOURS>;
var<workgroup> head_weights: array<f32, QUERIES>;

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let part = part_of(0u);
    let part_row = params.step.first_row + group.y;
    let n_seen = part.position + part_row + 1u;
    let first_position = group.x * N_LANES;
    if n_seen <= N_CHOSEN || first_position >= n_seen {
        return;
    }
    let row = part.first_row + part_row;
    let position = first_position + lane;
    let place = stored_place(part, min(position, n_seen - 1u));
    var score = 0.0;
    for (var first_head = 0u; first_head < N_HEADS; first_head += QUERIES) {
        // The heads before have been read.
        workgroupBarrier();
        for (var at = lane; at < QUERIES * KEY_FOURS; at += N_LANES) {
            let head = min(first_head + at / KEY_FOURS, N_HEADS - 1u);
            queries[at] = four_of(params.q, row, head, at % KEY_FOURS, KEY_DIM);
        }
        if lane < QUERIES {
            let head = min(first_head + lane, N_HEADS - 1u);
            head_weights[lane] = ws[place_of(params.weights, row, 0u) + head];
        }
        workgroupBarrier();
        var products: array<f32, QUERIES>;
        for (var i = 0u; i < QUERIES; i++) {
            products[i] = 0.0;
        }
        for (var four = 0u; four < KEY_FOURS; four++) {
            let key = first[place * KEY_FOURS + four];
            for (var i = 0u; i < QUERIES; i++) {
                products[i] += dot(queries[i * KEY_FOURS + four], key);
            }
        }
        for (var i = 0u; i < min(QUERIES, N_HEADS - first_head); i++) {
            // A comparison keeps NaN; `max` would not.
            let positive = select(products[i], 0.0, products[i] < 0.0);
            score += head_weights[i] * positive;
        }
    }
    if position < n_seen {
        ws[params.scores + group.y * (part.position + part.n_rows) + position] = score;
    }
}
