// Attention of a tile of queries over blocks of keys, with an online softmax: when a larger score
// appears, the sums so far are scaled down. The op's file provides queries, keys and values.
//
// QUERIES are (row, head) of one key head: TILE_ROWS rows of TILE_HEADS heads. Tiles along x, parts
// and their key heads along y, splits of the keys along z. If N_CHOSEN is not 0, a row may have a
// list of its keys, so TILE_ROWS is 1. An invocation scores four keys by
// QUERIES_EACH queries, from slices of columns in workgroup memory; then it sums four columns of
// the values for ROWS_EACH queries.

const KEYS: u32 = 64u;
const KEY_LANES: u32 = KEYS / 4u;
const QUERY_LANES: u32 = N_LANES / KEY_LANES;
const QUERIES_EACH: u32 = QUERIES / QUERY_LANES;
// One more than needed, so that neighbours in a column are in different memory banks.
const SLICE_STRIDE: u32 = SLICE + 1u;
const WEIGHTS_STRIDE: u32 = KEY_LANES + 1u;
const KEYS_AT: u32 = QUERIES * SLICE_STRIDE;
const TILE_FOURS: u32 = max((QUERIES + KEYS) * SLICE_STRIDE, QUERIES * WEIGHTS_STRIDE);
const TILE_ROWS: u32 = QUERIES / TILE_HEADS;
const N_PARTS: u32 = (GROUP + TILE_HEADS - 1u) / TILE_HEADS;
const QUERY_ROWS: u32 = N_LANES / VALUE_LANES;
const ROWS_EACH: u32 = (QUERIES + QUERY_ROWS - 1u) / QUERY_ROWS;
// Score of an unseen position: so far below the lowest initial maximum that its weight is 0.
const UNSEEN: f32 = -3e38;
const LEAST: f32 = -1e30;

// Slices of queries and keys; then the weights of all keys by query; alternating per block.
var<workgroup> tile: array<vec4<f32>, TILE_FOURS>;
// By query and lane of keys.
var<workgroup> of_lanes: array<f32, QUERIES * KEY_LANES>;
var<workgroup> of_queries: array<f32, QUERIES>;

// Work of a workgroup.
struct Work {
    part_idx: u32,
    part: Part,
    n_splits: u32,
    kv_head: u32,
    // Relative to the part.
    first_row: u32,
    first_head: u32,
    begin: u32,
    end: u32,
}

fn work_of(group: vec3<u32>) -> Work {
    var work: Work;
    work.part_idx = group.y / N_KV_HEADS;
    work.part = part_of(work.part_idx);
    work.n_splits = n_splits_of(work.part);
    work.kv_head = group.y % N_KV_HEADS;
    work.first_row = group.x / N_PARTS * TILE_ROWS;
    work.first_head = group.x % N_PARTS * TILE_HEADS;
    let end_row = min(work.first_row + TILE_ROWS, work.part.n_rows);
    let begin = first_seen(work.part.position + work.first_row);
    let end = end_of(work.part.position + end_row - 1u);
    let n_blocks = (end - begin + KEYS - 1u) / KEYS;
    let n_keys = (n_blocks + work.n_splits - 1u) / work.n_splits * KEYS;
    work.begin = min(begin + group.z * n_keys, end);
    work.end = min(work.begin + n_keys, end);
    return work;
}

fn row_of_query(work: Work, query: u32) -> u32 {
    return work.first_row + query / TILE_HEADS;
}

// Returns the head within the group that shares a key head.
fn head_of_query(work: Work, query: u32) -> u32 {
    return work.first_head + query % TILE_HEADS;
}

fn is_query(work: Work, query: u32) -> bool {
    return query < TILE_ROWS * TILE_HEADS && row_of_query(work, query) < work.part.n_rows
        && head_of_query(work, query) < GROUP;
}

fn load_slice(work: Work, block: u32, first_four: u32, lane: u32) {
    for (var at = lane; at < QUERIES * SLICE; at += N_LANES) {
        let query = at / SLICE;
        let four = first_four + at % SLICE;
        var value = vec4(0.0);
        if four < KEY_FOURS && is_query(work, query) {
            let row = work.part.first_row + row_of_query(work, query);
            value = query4(row, work.kv_head * GROUP + head_of_query(work, query), four);
        }
        tile[query * SLICE_STRIDE + at % SLICE] = value;
    }
    for (var at = lane; at < KEYS * SLICE; at += N_LANES) {
        let key = at / SLICE;
        let four = first_four + at % SLICE;
        var value = vec4(0.0);
        // Data beyond the last position is undefined.
        if four < KEY_FOURS && block + key < work.end {
            let position = position_of_key(work.part, work.first_row, block + key);
            value = key4(work.part, position, work.kv_head, four);
        }
        // An invocation's four keys are KEY_LANES apart, those of neighbours adjacent.
        let place = key % 4u * KEY_LANES + key / 4u;
        tile[KEYS_AT + place * SLICE_STRIDE + at % SLICE] = value;
    }
}

// Returns the scores of four consecutive keys; UNSEEN where the query's row does not see them.
fn masked(work: Work, query: u32, first_key: u32, scores: vec4<f32>) -> vec4<f32> {
    let position = work.part.position + row_of_query(work, query);
    let keys = vec4(first_key) + vec4(0u, 1u, 2u, 3u);
    let end = min(work.end, end_of(position));
    let are_seen = (keys < vec4(end)) & (keys >= vec4(first_seen(position)));
    return select(vec4(UNSEEN), scores * params.scale, are_seen);
}

fn largest_of(values: vec4<f32>) -> f32 {
    return max(max(values.x, values.y), max(values.z, values.w));
}

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let work = work_of(group);
    // Other parts of the dispatch have more rows, or see more positions.
    if work.first_row >= work.part.n_rows || group.z >= work.n_splits {
        return;
    }
    let key_lane = lane % KEY_LANES;
    let query_lane = lane / KEY_LANES;
    let value_lane = lane % VALUE_LANES;
    let query_row = lane / VALUE_LANES;
    if FROM_ROWS && work.first_head == 0u && group.z == 0u {
        for (var row = work.first_row; row < work.first_row + TILE_ROWS; row++) {
            for (var four = lane; four < APPENDED_FOURS; four += N_LANES) {
                append(work.part, row, work.kv_head, four);
            }
        }
    }

    var largest: array<f32, QUERIES_EACH>;
    var totals: array<f32, QUERIES_EACH>;
    var out: array<vec4<f32>, ROWS_EACH>;
    for (var i = 0u; i < QUERIES_EACH; i++) {
        let query = query_lane + i * QUERY_LANES;
        let head = min(work.kv_head * GROUP + head_of_query(work, query), N_HEADS - 1u);
        let has_sink = HAS_SINKS && group.z == 0u;
        largest[i] = select(LEAST, sink_of(head), has_sink);
        totals[i] = select(0.0, 1.0, has_sink && key_lane == 0u);
    }
    for (var i = 0u; i < ROWS_EACH; i++) {
        out[i] = vec4(0.0);
    }

    for (var block = work.begin; block < work.end; block += KEYS) {
        var scores: array<vec4<f32>, QUERIES_EACH>;
        for (var i = 0u; i < QUERIES_EACH; i++) {
            scores[i] = vec4(0.0);
        }
        for (var first_four = 0u; first_four < KEY_FOURS; first_four += SLICE) {
            // The previous slice, or the weights of the previous block, have been read.
            workgroupBarrier();
            load_slice(work, block, first_four, lane);
            workgroupBarrier();
            for (var col = 0u; col < SLICE; col++) {
                let key_at = KEYS_AT + key_lane * SLICE_STRIDE + col;
                let k0 = tile[key_at];
                let k1 = tile[key_at + KEY_LANES * SLICE_STRIDE];
                let k2 = tile[key_at + 2u * KEY_LANES * SLICE_STRIDE];
                let k3 = tile[key_at + 3u * KEY_LANES * SLICE_STRIDE];
                for (var i = 0u; i < QUERIES_EACH; i++) {
                    let q = tile[(query_lane + i * QUERY_LANES) * SLICE_STRIDE + col];
                    scores[i] += vec4(dot(q, k0), dot(q, k1), dot(q, k2), dot(q, k3));
                }
            }
        }
        for (var i = 0u; i < QUERIES_EACH; i++) {
            let query = query_lane + i * QUERY_LANES;
            scores[i] = masked(work, query, block + 4u * key_lane, scores[i]);
            of_lanes[query * KEY_LANES + key_lane] = largest_of(scores[i]);
        }
        workgroupBarrier();
        for (var i = 0u; i < QUERIES_EACH; i++) {
            let query = query_lane + i * QUERY_LANES;
            var now = largest[i];
            for (var other = 0u; other < KEY_LANES; other++) {
                now = max(now, of_lanes[query * KEY_LANES + other]);
            }
            let weights = exp(scores[i] - now);
            let factor = exp(largest[i] - now);
            totals[i] = totals[i] * factor + dot(weights, vec4(1.0));
            largest[i] = now;
            tile[query * WEIGHTS_STRIDE + key_lane] = weights;
            if key_lane == 0u {
                of_queries[query] = factor;
            }
        }
        workgroupBarrier();
        if value_lane < VALUE_FOURS {
            for (var i = 0u; i < ROWS_EACH; i++) {
                out[i] *= of_queries[min(query_row + i * QUERY_ROWS, QUERIES - 1u)];
            }
            for (var fours = 0u; fours < KEY_LANES; fours++) {
                let key = block + 4u * fours;
                let v0 = value_or_zero(work, key, value_lane);
                let v1 = value_or_zero(work, key + 1u, value_lane);
                let v2 = value_or_zero(work, key + 2u, value_lane);
                let v3 = value_or_zero(work, key + 3u, value_lane);
                for (var i = 0u; i < ROWS_EACH; i++) {
                    let query = min(query_row + i * QUERY_ROWS, QUERIES - 1u);
                    let weights = tile[query * WEIGHTS_STRIDE + fours];
                    out[i] += weights.x * v0 + weights.y * v1 + weights.z * v2 + weights.w * v3;
                }
            }
        }
    }

    // Factors and largest scores of the last block have been read.
    workgroupBarrier();
    for (var i = 0u; i < QUERIES_EACH; i++) {
        let query = query_lane + i * QUERY_LANES;
        of_lanes[query * KEY_LANES + key_lane] = totals[i];
        if key_lane == 0u {
            of_queries[query] = largest[i];
        }
    }
    workgroupBarrier();
    if value_lane < VALUE_FOURS {
        for (var i = 0u; i < ROWS_EACH; i++) {
            let query = query_row + i * QUERY_ROWS;
            if query < QUERIES && is_query(work, query) {
                leave(work, query, group.z, value_lane, out[i]);
            }
        }
    }
}

fn value_or_zero(work: Work, key: u32, four: u32) -> vec4<f32> {
    if key < work.end {
        let position = position_of_key(work.part, work.first_row, key);
        return value4(work.part, position, work.kv_head, four);
    }
    return vec4(0.0);
}

// Writes a query's result, or a split's contribution to it.
fn leave(work: Work, query: u32, split: u32, four: u32, sum: vec4<f32>) {
    var total = 0.0;
    for (var key_lane = 0u; key_lane < KEY_LANES; key_lane++) {
        total += of_lanes[query * KEY_LANES + key_lane];
    }
    let row = row_of_query(work, query);
    let head = work.kv_head * GROUP + head_of_query(work, query);
    if work.n_splits == 1u {
        for (var i = 0u; i < 4u; i++) {
            put(work.part, row, head, 4u * four + i, sum[i] / total);
        }
        return;
    }
    let at = partial_at(work.part_idx, row, head, split);
    if four == 0u {
        ws[at] = of_queries[query];
        ws[at + 1u] = total;
    }
    for (var i = 0u; i < 4u; i++) {
        ws[at + 4u * (four + 1u) + i] = sum[i];
    }
}
