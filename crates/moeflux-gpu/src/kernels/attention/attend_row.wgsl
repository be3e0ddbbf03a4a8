// Attention of parts of one row over blocks of keys: parts and their key heads along y, splits of
// the keys along z, and along x HEADS of the query heads that share a key head. The op's file
// provides queries, keys and values.
//
// TEAM neighbouring invocations take KEYS_EACH keys of a block and score them for all HEADS. In the
// softmax each invocation has one key of one head. Finally it has four columns of the values for
// all heads, for every VALUE_TEAMS-th key. All reads of a block are in flight together: none is in
// a branch, and the row's own key, which is not yet stored, is inserted after them.

const N_TEAMS: u32 = N_LANES / TEAM;
const KEYS: u32 = N_TEAMS * KEYS_EACH;
const FOURS_EACH: u32 = (KEY_FOURS + TEAM - 1u) / TEAM;
// Partial sums per score that remain after neighbours have added theirs up.
const N_PARTS: u32 = TEAM / WIDTH;
const HEAD_LANES: u32 = N_LANES / HEADS;
const VALUES_EACH: u32 = KEYS / VALUE_TEAMS;
const SHARED_FOURS: u32 = HEADS * max(KEY_FOURS, VALUE_FOURS);
// Score of an unseen position: so far below the lowest initial maximum that its weight is 0.
const UNSEEN: f32 = -3e38;
const LEAST: f32 = -1e30;

// By head: the queries; after all keys are scored, sums of values.
var<workgroup> fours: array<vec4<f32>, SHARED_FOURS>;
var<workgroup> parts: array<f32, HEADS * KEYS * N_PARTS>;
// By head and key; finally each invocation's part of the sums of weights.
var<workgroup> scores: array<f32, HEADS * KEYS>;
// By key and head.
var<workgroup> weights_of_keys: array<f32, KEYS * HEADS>;
// By head: the scale of its sums; finally its largest score.
var<workgroup> of_heads: array<f32, HEADS>;

fn score_of(head: u32, key: u32) -> f32 {
    var score = 0.0;
    for (var part = 0u; part < N_PARTS; part++) {
        score += parts[(head * KEYS + key) * N_PARTS + part];
    }
    return score * params.scale;
}

// An invocation's keys of a block, and its values.
var<private> keys: array<vec4<f32>, FOURS_EACH * KEYS_EACH>;
var<private> values: array<vec4<f32>, VALUES_EACH>;

// Loads a block; `last` is its last position that is seen.
fn load_block(part: Part, block: u32, last: u32, kv_head: u32, lane: u32) {
    let team = lane / TEAM;
    let value_team = lane / VALUE_LANES;
    let value_four = min(lane % VALUE_LANES, VALUE_FOURS - 1u);
    var key_places: array<u32, KEYS_EACH>;
    for (var own = 0u; own < KEYS_EACH; own++) {
        key_places[own] = stored_place(part, min(block + own * N_TEAMS + team, last));
    }
    var value_places: array<u32, VALUES_EACH>;
    for (var i = 0u; i < VALUES_EACH; i++) {
        value_places[i] = stored_place(part, min(block + i * VALUE_TEAMS + value_team, last));
    }
    for (var i = 0u; i < FOURS_EACH; i++) {
        let four = min(i * TEAM + lane % TEAM, KEY_FOURS - 1u);
        for (var own = 0u; own < KEYS_EACH; own++) {
            keys[i * KEYS_EACH + own] = stored_key4(key_places[own], kv_head, four);
        }
    }
    for (var i = 0u; i < VALUES_EACH; i++) {
        values[i] = stored_value4(value_places[i], kv_head, value_four);
    }
    // Data beyond the last position is undefined.
    if block + KEYS <= part.position {
        return;
    }
    for (var i = 0u; i < FOURS_EACH; i++) {
        let four = min(i * TEAM + lane % TEAM, KEY_FOURS - 1u);
        for (var own = 0u; own < KEYS_EACH; own++) {
            let position = block + own * N_TEAMS + team;
            if position >= part.position {
                keys[i * KEYS_EACH + own] = vec4(0.0);
            }
            if position == part.position {
                keys[i * KEYS_EACH + own] = key4(part, position, kv_head, four);
            }
        }
    }
    for (var i = 0u; i < VALUES_EACH; i++) {
        let position = block + i * VALUE_TEAMS + value_team;
        if position >= part.position {
            values[i] = vec4(0.0);
        }
        if position == part.position {
            values[i] = value4(part, position, kv_head, value_four);
        }
    }
}

// Scores the loaded block.
fn score_keys(lane: u32) {
    let team = lane / TEAM;
    let in_team = lane % TEAM;
    var sums: array<f32, KEYS_EACH * HEADS>;
    for (var i = 0u; i < FOURS_EACH; i++) {
        let four = i * TEAM + in_team;
        for (var head = 0u; head < HEADS; head++) {
            let is_there = four < KEY_FOURS;
            let at = head * KEY_FOURS + min(four, KEY_FOURS - 1u);
            let query = select(vec4(0.0), fours[at], is_there);
            for (var own = 0u; own < KEYS_EACH; own++) {
                sums[own * HEADS + head] += dot(query, keys[i * KEYS_EACH + own]);
            }
        }
    }
    for (var own = 0u; own < KEYS_EACH; own++) {
        for (var head = 0u; head < HEADS; head++) {
            let part = sum_of_neighbours(sums[own * HEADS + head]);
            if in_team % WIDTH == 0u {
                let key = own * N_TEAMS + team;
                parts[(head * KEYS + key) * N_PARTS + in_team / WIDTH] = part;
            }
        }
    }
}

// Writes a head's four columns, or a split's contribution to them.
fn leave(idx: u32, head: u32, local_head: u32, split: u32, four: u32, sum: vec4<f32>) {
    var total = 0.0;
    for (var key = 0u; key < KEYS; key++) {
        total += scores[local_head * KEYS + key];
    }
    let part = part_of(idx);
    if n_splits_of(part) == 1u {
        for (var i = 0u; i < 4u; i++) {
            put(part, 0u, head, 4u * four + i, sum[i] / total);
        }
        return;
    }
    let at = partial_at(idx, 0u, head, split);
    if four == 0u {
        ws[at] = of_heads[local_head];
        ws[at + 1u] = total;
    }
    for (var i = 0u; i < 4u; i++) {
        ws[at + 4u * (four + 1u) + i] = sum[i];
    }
}

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let part_idx = group.y / N_KV_HEADS;
    let kv_head = group.y % N_KV_HEADS;
    let first_head = group.x * HEADS;
    let part = part_of(part_idx);
    let row = part.first_row;
    let position = part.position;
    let n_splits = n_splits_of(part);
    // Other parts of the dispatch see more.
    if group.z >= n_splits {
        return;
    }
    let first = first_seen(position);
    let n_blocks = (position + 1u - first + KEYS - 1u) / KEYS;
    let n_keys = (n_blocks + n_splits - 1u) / n_splits * KEYS;
    let begin = min(first + group.z * n_keys, position + 1u);
    let end = min(begin + n_keys, position + 1u);

    for (var at = lane; at < HEADS * KEY_FOURS; at += N_LANES) {
        let head = first_head + at / KEY_FOURS;
        var query = vec4(0.0);
        if head < GROUP {
            query = query4(row, kv_head * GROUP + head, at % KEY_FOURS);
        }
        fours[at] = query;
    }
    if first_head == 0u && group.z == 0u {
        for (var four = lane; four < APPENDED_FOURS; four += N_LANES) {
            append(part, 0u, kv_head, four);
        }
    }

    // For the softmax.
    let own_head = lane / HEAD_LANES;
    let own_key = lane % HEAD_LANES;
    let has_sink = HAS_SINKS && group.z == 0u;
    let head_of_sink = kv_head * GROUP + min(first_head + own_head, GROUP - 1u);
    var largest = select(LEAST, sink_of(head_of_sink), has_sink);
    var total = select(0.0, 1.0, has_sink && own_key == 0u);
    // For the sums of values.
    let value_lane = lane % VALUE_LANES;
    let value_team = lane / VALUE_LANES;
    let has_values = value_lane < VALUE_FOURS && value_team < VALUE_TEAMS;
    var out: array<vec4<f32>, HEADS>;
    for (var head = 0u; head < HEADS; head++) {
        out[head] = vec4(0.0);
    }

    workgroupBarrier();
    for (var block = begin; block < end; block += KEYS) {
        load_block(part, block, end - 1u, kv_head, lane);
        score_keys(lane);
        workgroupBarrier();
        if own_key < KEYS {
            let is_seen = block + own_key < end;
            scores[own_head * KEYS + own_key] =
                select(UNSEEN, score_of(own_head, own_key), is_seen);
        }
        workgroupBarrier();
        if own_key < KEYS {
            var now = largest;
            for (var key = 0u; key < KEYS; key++) {
                now = max(now, scores[own_head * KEYS + key]);
            }
            let weight = exp(scores[own_head * KEYS + own_key] - now);
            let factor = exp(largest - now);
            total = total * factor + weight;
            largest = now;
            weights_of_keys[own_key * HEADS + own_head] = weight;
            if own_key == 0u {
                of_heads[own_head] = factor;
            }
        }
        workgroupBarrier();
        for (var head = 0u; head < HEADS; head++) {
            out[head] *= of_heads[head];
        }
        for (var i = 0u; i < VALUES_EACH; i++) {
            let key = min(i * VALUE_TEAMS + value_team, KEYS - 1u);
            for (var head = 0u; head < HEADS; head++) {
                out[head] += weights_of_keys[key * HEADS + head] * values[i];
            }
        }
    }

    // Factors of the last block, and queries, have been read.
    workgroupBarrier();
    if own_key < KEYS {
        scores[own_head * KEYS + own_key] = total;
        if own_key == 0u {
            of_heads[own_head] = largest;
        }
    }
    for (var team = 0u; team < VALUE_TEAMS; team++) {
        if has_values && value_team == team {
            for (var head = 0u; head < HEADS; head++) {
                let at = head * VALUE_FOURS + value_lane;
                fours[at] = select(fours[at], vec4(0.0), team == 0u) + out[head];
            }
        }
        workgroupBarrier();
    }
    for (var at = lane; at < HEADS * VALUE_FOURS; at += N_LANES) {
        let head = at / VALUE_FOURS;
        if first_head + head < GROUP {
            let of_model = kv_head * GROUP + first_head + head;
            leave(part_idx, of_model, head, group.z, at % VALUE_FOURS, fours[at]);
        }
    }
}
