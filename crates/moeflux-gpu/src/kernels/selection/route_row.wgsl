// The TOP_K best experts of a row and their weights, by one workgroup.
//
// Every expert counts those ranked before it. Integer keys give a total order of all experts, so
// that exactly TOP_K are chosen for any logits. NaN comes last. First each is compared with the
// others of its stretch; those among the best TOP_K there are candidates, and are compared with
// each other.

const GROUP_LEN: u32 = N_EXPERTS / N_GROUPS;
// The key of minus infinity.
const EXCLUDED: u32 = 0x007fffffu;

const STRETCH: u32 = 32u;
const N_STRETCHES: u32 = (N_EXPERTS + STRETCH - 1u) / STRETCH;
const BEST_OF_STRETCH: u32 = min(TOP_K, STRETCH);
// Ranks are computed for this many at once.
const N_AT_ONCE: u32 = 4u;
const N_KEYS: u32 = N_STRETCHES * STRETCH;
const N_CANDIDATES: u32 = (N_STRETCHES * BEST_OF_STRETCH + N_AT_ONCE - 1u) / N_AT_ONCE * N_AT_ONCE;
const EXPERTS_EACH: u32 = (N_EXPERTS + N_LANES - 1u) / N_LANES;

// Places after the last expert rank after all experts.
var<workgroup> keys: array<u32, N_KEYS>;
// By stretch and rank there: keys and experts.
var<workgroup> candidates: array<vec2<u32>, N_CANDIDATES>;
// Logits of an invocation's experts, read once.
var<private> logits: array<f32, EXPERTS_EACH>;
// By group: its best choice and its second.
var<workgroup> best: array<f32, N_GROUPS>;
var<workgroup> second: array<f32, N_GROUPS>;
var<workgroup> group_keys: array<u32, N_GROUPS>;
// A bit per expert.
var<workgroup> chosen: array<atomic<u32>, (N_EXPERTS + 31u) / 32u>;
var<workgroup> largest: f32;

// Ordered as the values are; 0 and -0 are equal.
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

// Returns 1 if expert `other` ranks before one with this key: of equal keys the lower index does.
fn comes_before(other: u32, key: u32, expert: u32) -> u32 {
    let other_key = keys[other];
    return select(0u, 1u, other_key > key || (other_key == key && other < expert));
}

// Returns how many experts of `first .. end` rank before one.
fn rank_among(first: u32, end: u32, expert: u32) -> u32 {
    let key = keys[expert];
    var rank = 0u;
    for (var other = first; other < end; other++) {
        rank += comes_before(other, key, expert);
    }
    return rank;
}

// Returns how many of its stretch rank before an expert. Independent reads are written out, here
// and below, because not every driver unrolls a loop.
fn rank_in_stretch(expert: u32) -> u32 {
    let key = keys[expert];
    let first = expert / STRETCH * STRETCH;
    var rank = 0u;
    for (var other = first; other < first + STRETCH; other += N_AT_ONCE) {
        let two = comes_before(other, key, expert) + comes_before(other + 1u, key, expert);
        let more = comes_before(other + 2u, key, expert) + comes_before(other + 3u, key, expert);
        rank += two + more;
    }
    return rank;
}

fn is_before(other: vec2<u32>, candidate: vec2<u32>) -> u32 {
    let is_lower = other.x == candidate.x && other.y < candidate.y;
    return select(0u, 1u, other.x > candidate.x || is_lower);
}

// Returns how many candidates rank before one. For those in the best TOP_K, this is the rank among
// all experts.
fn rank_of_candidate(candidate: vec2<u32>) -> u32 {
    var rank = 0u;
    for (var other = 0u; other < N_CANDIDATES; other += N_AT_ONCE) {
        let first = is_before(candidates[other], candidate);
        let second = is_before(candidates[other + 1u], candidate);
        let third = is_before(candidates[other + 2u], candidate);
        let last = is_before(candidates[other + 3u], candidate);
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

// Moves experts of all but the best groups to the end of the order.
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

// Returns how many experts with a lower index are chosen.
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
    for (var own = 0u; own < EXPERTS_EACH; own++) {
        let expert = own * N_LANES + lanes.lane;
        logits[own] = 0.0;
        if expert < N_EXPERTS {
            logits[own] = ws[logits_at + expert];
            keys[expert] = key_of(choice_of(logits[own], expert));
            if expert % 32u == 0u {
                atomicStore(&chosen[expert / 32u], 0u);
            }
        }
    }
    for (var behind = N_EXPERTS + lanes.lane; behind < N_KEYS; behind += N_LANES) {
        keys[behind] = 0u;
    }
    for (var place = lanes.lane; place < N_CANDIDATES; place += N_LANES) {
        candidates[place] = vec2(0u, NONE);
    }
    workgroupBarrier();
    if N_GROUPS > 1u {
        exclude_groups(logits_at, lanes.lane);
    }
    for (var expert = lanes.lane; expert < N_EXPERTS; expert += N_LANES) {
        let rank = rank_in_stretch(expert);
        if rank < BEST_OF_STRETCH {
            candidates[expert / STRETCH * BEST_OF_STRETCH + rank] = vec2(keys[expert], expert);
        }
    }
    workgroupBarrier();
    for (var place = lanes.lane; place < N_CANDIDATES; place += N_LANES) {
        let candidate = candidates[place];
        let rank = rank_of_candidate(candidate);
        if rank < TOP_K && candidate.y != NONE {
            atomicOr(&chosen[candidate.y / 32u], 1u << (candidate.y % 32u));
            if rank == 0u {
                largest = ws[logits_at + candidate.y];
            }
        }
    }
    workgroupBarrier();
    var weights_of: array<f32, EXPERTS_EACH>;
    var own_sum = 0.0;
    for (var own = 0u; own < EXPERTS_EACH; own++) {
        let expert = own * N_LANES + lanes.lane;
        weights_of[own] = weight_of(logits[own]);
        if expert < N_EXPERTS && (is_chosen(expert) || !(IS_SIGMOID || RENORMALISES)) {
            own_sum += weights_of[own];
        }
    }
    let sum = sum_of_lanes(own_sum, lanes);
    let divisor = select(sum, select(1.0, sum + 1e-20, RENORMALISES), IS_SIGMOID);
    for (var own = 0u; own < EXPERTS_EACH; own++) {
        let expert = own * N_LANES + lanes.lane;
        if expert < N_EXPERTS && is_chosen(expert) {
            let weight = weights_of[own] / divisor * params.factor;
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
