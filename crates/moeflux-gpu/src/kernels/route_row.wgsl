// The TOP_K best experts of a row and their weights, by one workgroup.
//
// Every expert counts those that come before it: with whole numbers as keys there is an order
// of all experts, so that exactly TOP_K are chosen whatever the logits are. What is no number
// comes last.

const GROUP_LEN: u32 = N_EXPERTS / N_GROUPS;
// The key of minus infinity.
const EXCLUDED: u32 = 0x007fffffu;

// `rank_among_all` compares so many at once, and what is behind the last comes after all others.
const N_AT_ONCE: u32 = 8u;
const N_KEYS: u32 = (N_EXPERTS + N_AT_ONCE - 1u) / N_AT_ONCE * N_AT_ONCE;

var<workgroup> keys: array<u32, N_KEYS>;
// By group: its best choice and its second.
var<workgroup> best: array<f32, N_GROUPS>;
var<workgroup> second: array<f32, N_GROUPS>;
var<workgroup> group_keys: array<u32, N_GROUPS>;
// A bit per expert.
var<workgroup> chosen: array<atomic<u32>, (N_EXPERTS + 31u) / 32u>;
var<workgroup> largest: f32;

// Ordered as the values are: 0 and -0 are equal.
fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    if is_nan(value) {
        return 0u;
    }
    if bits == 0x80000000u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// 1 if an expert comes before one with this key: among equals the lower index does.
fn comes_before(other: u32, key: u32, expert: u32) -> u32 {
    let other_key = keys[other];
    return select(0u, 1u, other_key > key || (other_key == key && other < expert));
}

// How many experts of `first .. end` come before one.
fn rank_among(first: u32, end: u32, expert: u32) -> u32 {
    let key = keys[expert];
    var rank = 0u;
    for (var other = first; other < end; other++) {
        rank += comes_before(other, key, expert);
    }
    return rank;
}

// How many of all experts come before one. Reads that do not wait for each other are written out:
// not every driver unrolls a loop.
fn rank_among_all(expert: u32) -> u32 {
    let key = keys[expert];
    var rank = 0u;
    for (var other = 0u; other < N_KEYS; other += N_AT_ONCE) {
        let first = comes_before(other, key, expert) + comes_before(other + 1u, key, expert);
        let second = comes_before(other + 2u, key, expert) + comes_before(other + 3u, key, expert);
        let third = comes_before(other + 4u, key, expert) + comes_before(other + 5u, key, expert);
        let last = comes_before(other + 6u, key, expert) + comes_before(other + 7u, key, expert);
        rank += (first + second) + (third + last);
    }
    return rank;
}

fn rank_of_group(group: u32) -> u32 {
    let key = group_keys[group];
    var rank = 0u;
    for (var other = 0u; other < N_GROUPS; other++) {
        let other_key = group_keys[other];
        rank += select(0u, 1u, other_key > key || (other_key == key && other < group));
    }
    return rank;
}

fn choice_of(logit: f32, expert: u32) -> f32 {
    if IS_SIGMOID {
        return sigmoid(logit) + vectors[params.correction + expert];
    }
    return logit;
}

// Lets experts of all but the best groups come last.
fn exclude_groups(logits_at: u32, lane: u32) {
    for (var expert = lane; expert < N_EXPERTS; expert += N_LANES) {
        let group = expert / GROUP_LEN;
        let rank = rank_among(group * GROUP_LEN, (group + 1u) * GROUP_LEN, expert);
        if rank == 0u {
            best[group] = choice_of(ws[logits_at + expert], expert);
        }
        if rank == 1u {
            second[group] = choice_of(ws[logits_at + expert], expert);
        }
    }
    workgroupBarrier();
    for (var group = lane; group < N_GROUPS; group += N_LANES) {
        group_keys[group] = key_of(best[group] + select(0.0, second[group], GROUP_LEN > 1u));
    }
    workgroupBarrier();
    for (var expert = lane; expert < N_EXPERTS; expert += N_LANES) {
        if rank_of_group(expert / GROUP_LEN) >= N_GROUPS_KEPT {
            keys[expert] = EXCLUDED;
        }
    }
    workgroupBarrier();
}

fn is_chosen(expert: u32) -> bool {
    return ((atomicLoad(&chosen[expert / 32u]) >> (expert % 32u)) & 1u) == 1u;
}

// How many experts with a lower index are chosen.
fn place_among_chosen(expert: u32) -> u32 {
    var place = 0u;
    for (var word = 0u; word < expert / 32u; word++) {
        place += countOneBits(atomicLoad(&chosen[word]));
    }
    let lower = (1u << (expert % 32u)) - 1u;
    return place + countOneBits(atomicLoad(&chosen[expert / 32u]) & lower);
}

fn weight_of(logit: f32) -> f32 {
    if IS_SIGMOID {
        return sigmoid(logit);
    }
    return exp_of(logit - largest);
}

fn choose(lanes: Lanes, row: u32) {
    let logits_at = place_of(params.logits, row, 0u);
    for (var expert = lanes.lane; expert < N_EXPERTS; expert += N_LANES) {
        keys[expert] = key_of(choice_of(ws[logits_at + expert], expert));
        if expert % 32u == 0u {
            atomicStore(&chosen[expert / 32u], 0u);
        }
    }
    for (var behind = N_EXPERTS + lanes.lane; behind < N_KEYS; behind += N_LANES) {
        keys[behind] = 0u;
    }
    workgroupBarrier();
    if N_GROUPS > 1u {
        exclude_groups(logits_at, lanes.lane);
    }
    for (var expert = lanes.lane; expert < N_EXPERTS; expert += N_LANES) {
        let rank = rank_among_all(expert);
        if rank < TOP_K {
            atomicOr(&chosen[expert / 32u], 1u << (expert % 32u));
        }
        if rank == 0u {
            largest = ws[logits_at + expert];
        }
    }
    workgroupBarrier();
    var own = 0.0;
    for (var expert = lanes.lane; expert < N_EXPERTS; expert += N_LANES) {
        let counts = is_chosen(expert) || !(IS_SIGMOID || RENORMALISES);
        own += select(0.0, weight_of(ws[logits_at + expert]), counts);
    }
    let sum = sum_of_lanes(own, lanes);
    let divisor = select(sum, select(1.0, sum + 1e-20, RENORMALISES), IS_SIGMOID);
    for (var expert = lanes.lane; expert < N_EXPERTS; expert += N_LANES) {
        if is_chosen(expert) {
            let weight = weight_of(ws[logits_at + expert]) / divisor * params.factor;
            let rank = place_among_chosen(expert);
            if GUESSES {
                let guess_at = place_of(params.guess, row, 0u) + rank;
                ws[guess_at] = f32(expert);
                ws[guess_at + TOP_K] = weight;
            } else {
                routes[row * TOP_K + rank] = vec2(expert, bitcast<u32>(weight));
            }
        }
    }
}
