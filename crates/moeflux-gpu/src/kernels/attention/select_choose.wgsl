// Lists the positions of the largest scores: a workgroup for each row of a part.
//
// A rank is a number that is larger for a larger score. The bytes of the rank of the last score
// that is chosen are found from the highest on, by counting the scores with the bytes known so far.
// Then each invocation lists the chosen positions of its own share.

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> is_broken: atomic<u32>;
// The bytes known so far, and how many scores with these bytes are chosen.
var<workgroup> known: u32;
var<workgroup> n_wanted: u32;
// In each invocation's share: larger ranks than the last one chosen, and equal ones.
var<workgroup> n_larger: array<u32, N_LANES>;
var<workgroup> n_equal: array<u32, N_LANES>;

fn rank_of(bits: u32) -> u32 {
    // -0 equals 0.
    let score = select(bits, 0u, bits == 0x80000000u);
    return select(score | 0x80000000u, ~score, (score >> 31u) == 1u);
}

fn bits_at(at: u32) -> u32 {
    return bitcast<u32>(ws[at]);
}

// Finds a byte of the rank of the last score that is chosen.
fn find_byte(lane: u32, scores_at: u32, n_seen: u32, shift: u32) {
    for (var value = lane; value < 256u; value += N_LANES) {
        atomicStore(&counts[value], 0u);
    }
    workgroupBarrier();
    let higher = known;
    for (var position = lane; position < n_seen; position += N_LANES) {
        let bits = bits_at(scores_at + position);
        if (bits & 0x7f800000u) == 0x7f800000u {
            atomicStore(&is_broken, 1u);
        }
        let rank = rank_of(bits);
        // Two shifts, since one by 32 is none.
        if ((rank >> shift) >> 8u) == ((higher >> shift) >> 8u) {
            atomicAdd(&counts[(rank >> shift) & 0xffu], 1u);
        }
    }
    workgroupBarrier();
    if lane == 0u {
        var n_left = n_wanted;
        var value = 255u;
        var n = atomicLoad(&counts[value]);
        while n < n_left && value > 0u {
            n_left -= n;
            value -= 1u;
            n = atomicLoad(&counts[value]);
        }
        known = higher | (value << shift);
        n_wanted = n_left;
    }
    workgroupBarrier();
}

@compute @workgroup_size(N_LANES)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let part = part_of(0u);
    let part_row = params.step.first_row + group.x;
    let n_seen = part.position + part_row + 1u;
    if n_seen <= N_CHOSEN {
        return;
    }
    let scores_at = params.scores + group.x * (part.position + part.n_rows);
    let list_at = place_of(params.list, part.first_row + part_row, 0u);
    if lane == 0u {
        known = 0u;
        n_wanted = N_CHOSEN;
        atomicStore(&is_broken, 0u);
    }
    workgroupBarrier();
    for (var byte = 0u; byte < 4u; byte++) {
        find_byte(lane, scores_at, n_seen, 24u - 8u * byte);
    }
    let broken = atomicLoad(&is_broken);
    if broken != 0u {
        for (var i = lane; i < N_CHOSEN; i += N_LANES) {
            ws[list_at + i] = bitcast<f32>(0x7fc00000u | broken);
        }
        return;
    }
    let n_each = (n_seen + N_LANES - 1u) / N_LANES;
    let begin = min(lane * n_each, n_seen);
    let end = min(begin + n_each, n_seen);
    var larger = 0u;
    var equal = 0u;
    for (var position = begin; position < end; position++) {
        let rank = rank_of(bits_at(scores_at + position));
        larger += u32(rank > known);
        equal += u32(rank == known);
    }
    n_larger[lane] = larger;
    n_equal[lane] = equal;
    workgroupBarrier();
    larger = 0u;
    equal = 0u;
    for (var other = 0u; other < lane; other++) {
        larger += n_larger[other];
        equal += n_equal[other];
    }
    for (var position = begin; position < end; position++) {
        let rank = rank_of(bits_at(scores_at + position));
        if rank > known || (rank == known && equal < n_wanted) {
            ws[list_at + larger + min(equal, n_wanted)] = f32(position);
        }
        larger += u32(rank > known);
        equal += u32(rank == known);
    }
}
