// A layer of gated DeltaNet for sessions of one row each: key heads along x, sessions along z. See
// causal_conv.wgsl, l2_norm.wgsl, gated_delta.wgsl and rms_norm.wgsl for its parts.

// Four adjacent values are shared by N_PARTS neighbouring invocations. Each has N_OWN of the keys,
// N_PARTS apart, in registers. WIDTH of them add up without workgroup memory.
const N_OWN: u32 = (KEY_DIM + N_PARTS - 1u) / N_PARTS;
const N_WIDTHS: u32 = N_PARTS / WIDTH;
const VALUES_AT: u32 = 2u * KEY_DIM;
const N_MIXED: u32 = VALUES_AT + N_SHARED * VALUE_DIM;
const N_KEPT: u32 = (N_TAPS - 1u) * N_CHANNELS;
const N_KEY_HEADS: u32 = N_CHANNELS / N_MIXED;
const N_STATE: u32 = N_KEY_HEADS * N_SHARED * VALUE_DIM * KEY_DIM;
const MIXED_EACH: u32 = (N_MIXED + N_LANES - 1u) / N_LANES;

// Output of the convolution: the query, the key, then the values of all heads that share them.
var<workgroup> mixed: array<f32, N_MIXED>;
var<workgroup> parts: array<vec4<f32>, N_LANES / WIDTH>;

// For HELD heads at once: an invocation's part of their states, and the other data read from
// memory, so that all of it is in flight before anything waits.
var<private> states: array<vec4<f32>, HELD * N_OWN>;
var<private> decays: array<f32, HELD>;
var<private> betas: array<f32, HELD>;
var<private> gates: array<vec4<f32>, HELD>;

fn channel_of(place: u32, key_head: u32) -> u32 {
    if place < KEY_DIM {
        return params.q_channel + key_head * KEY_DIM + place;
    }
    if place < VALUES_AT {
        return params.k_channel + key_head * KEY_DIM + place - KEY_DIM;
    }
    let value = place - VALUES_AT;
    return params.v_channel + head_of(key_head, value / VALUE_DIM) * VALUE_DIM + value % VALUE_DIM;
}

// Fills `mixed`; the stored inputs of channels advance by one.
fn convolve(part: Part, key_head: u32, lane: u32) {
    var inputs: array<f32, MIXED_EACH * N_TAPS>;
    for (var i = 0u; i < MIXED_EACH; i++) {
        let channel = channel_of(min(i * N_LANES + lane, N_MIXED - 1u), key_head);
        for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
            let found = part.found * N_KEPT + tap * N_CHANNELS + channel;
            inputs[i * N_TAPS + tap] = kept(found);
        }
        let newest = place_of(params.x, part.first_row, 0u) + channel;
        inputs[i * N_TAPS + N_TAPS - 1u] = ws[newest];
    }
    for (var i = 0u; i < MIXED_EACH; i++) {
        let place = i * N_LANES + lane;
        if place < N_MIXED {
            let channel = channel_of(place, key_head);
            let weight_at = params.weight + channel * N_TAPS;
            var sum = 0.0;
            for (var tap = 0u; tap < N_TAPS; tap++) {
                sum = fma(vectors[weight_at + tap], inputs[i * N_TAPS + tap], sum);
            }
            mixed[place] = silu(sum);
            let left_at = part.left * N_KEPT;
            for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
                keep(left_at + tap * N_CHANNELS + channel, inputs[i * N_TAPS + tap + 1u]);
            }
        }
    }
}

// Returns the first of an invocation's four values. Invocations after the last repeat its values.
fn value_of(lane: u32) -> u32 {
    return min(lane / N_PARTS, (VALUE_DIM - 1u) / 4u) * 4u;
}

fn key_of(own: u32, lane: u32) -> u32 {
    return own * N_PARTS + lane % N_PARTS;
}

// Strips of values are stored one after the other, and within each key by key.
fn state_at(head: u32, key: u32, lane: u32) -> u32 {
    let strip = value_of(lane) / STRIP * STRIP;
    let width = min(STRIP, VALUE_DIM - strip);
    return (head * VALUE_DIM + strip) * KEY_DIM + key * width + value_of(lane) - strip;
}

// Returns how many of the four values exist and belong to this invocation.
fn n_values_of(lane: u32) -> u32 {
    let is_own = lane / N_PARTS * 4u < VALUE_DIM;
    return select(0u, min(4u, VALUE_DIM - value_of(lane)), is_own);
}

// Heads after the last are read as the last; nothing is written for them.
fn head_of(key_head: u32, shared_idx: u32) -> u32 {
    return key_head * KEY_STEP + min(shared_idx, N_SHARED - 1u) * SHARED_STEP;
}

fn load_heads(part: Part, key_head: u32, first_shared: u32, lane: u32) {
    let row = part.first_row;
    for (var held = 0u; held < HELD; held++) {
        let head = head_of(key_head, first_shared + held);
        for (var own = 0u; own < N_OWN; own++) {
            let key = key_of(own, lane);
            // Reads are not in branches, so that they are in flight together.
            let at = state_at(head, min(key, KEY_DIM - 1u), lane);
            let four = state_four(part.found * N_STATE + at, lane);
            states[held * N_OWN + own] = select(vec4(0.0), four, key < KEY_DIM);
        }
    }
    for (var held = 0u; held < HELD; held++) {
        let head = head_of(key_head, first_shared + held);
        let gate_at = place_of(params.gate, row, head);
        for (var i = 0u; i < 4u; i++) {
            gates[held][i] = ws[gate_at + min(value_of(lane) + i, VALUE_DIM - 1u)];
        }
        let a = ws[place_of(params.a, row, 0u) + head];
        decays[held] = decay_of(a, vectors[params.a_log + head], vectors[params.dt_bias + head]);
        betas[held] = sigmoid(ws[place_of(params.b, row, 0u) + head]);
    }
}

// Returns the sum of four values over the N_PARTS invocations, to all of them.
fn sum_of_parts(value: vec4<f32>, lane: u32) -> vec4<f32> {
    let own = four_sums_of_neighbours(value);
    if N_WIDTHS == 1u {
        return own;
    }
    // Sums of an earlier call have been read.
    workgroupBarrier();
    if lane % WIDTH == 0u {
        parts[lane / WIDTH] = own;
    }
    workgroupBarrier();
    var sum = vec4(0.0);
    for (var part = 0u; part < N_WIDTHS; part++) {
        sum += parts[lane / N_PARTS * N_WIDTHS + part];
    }
    return sum;
}

// Factors of the query and the key, and the scaled product of the two.
struct Scales {
    q: f32,
    k: f32,
    product: f32,
}

fn scales_of(lane: u32) -> Scales {
    var own = vec4(0.0);
    for (var idx = 0u; idx < N_OWN; idx++) {
        let key = key_of(idx, lane);
        if key < KEY_DIM {
            let q = mixed[key];
            let k = mixed[KEY_DIM + key];
            own += vec4(q * q, k * k, q * k, 0.0);
        }
    }
    let sums = sum_of_parts(own, lane);
    var scales: Scales;
    scales.q = params.q_factor / root_of(sums.x + params.key_epsilon);
    scales.k = params.k_factor / root_of(sums.y + params.key_epsilon);
    scales.product = sums.z * scales.q * scales.k;
    return scales;
}

// Applies the delta rule to four values of a head; all their invocations get the output.
fn output_of(
    part: Part,
    key_head: u32,
    shared_idx: u32,
    held: u32,
    scales: Scales,
    lane: u32,
) -> vec4<f32> {
    var by_k = vec4(0.0);
    var by_q = vec4(0.0);
    for (var own = 0u; own < N_OWN; own++) {
        // Data after the last key is multiplied by zeros, but must be finite.
        let key = min(key_of(own, lane), KEY_DIM - 1u);
        by_k = fma(states[held * N_OWN + own], vec4(mixed[KEY_DIM + key]), by_k);
        by_q = fma(states[held * N_OWN + own], vec4(mixed[key]), by_q);
    }
    by_k = sum_of_parts(by_k, lane);
    by_q = sum_of_parts(by_q, lane);
    var v: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let value = min(value_of(lane) + i, VALUE_DIM - 1u);
        v[i] = mixed[VALUES_AT + min(shared_idx, N_SHARED - 1u) * VALUE_DIM + value];
    }
    let decay = decays[held];
    let delta = (v - decay * by_k * scales.k) * betas[held];
    if shared_idx < N_SHARED {
        for (var own = 0u; own < N_OWN; own++) {
            let key = key_of(own, lane);
            if key < KEY_DIM {
                let k = mixed[KEY_DIM + key] * scales.k;
                let state = decay * states[held * N_OWN + own] + delta * k;
                let at = state_at(head_of(key_head, shared_idx), key, lane);
                set_state_four(part.left * N_STATE + at, state, lane);
            }
        }
    }
    return decay * by_q * scales.q + delta * scales.product;
}

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let part = part_of(group.z);
    let row = part.first_row;
    let lane = lanes.lane;
    // One invocation of each value writes it.
    let n_written = select(0u, n_values_of(lane), lane % N_PARTS == 0u);
    var gain: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        gain[i] = vectors[params.gain + min(value_of(lane) + i, VALUE_DIM - 1u)];
    }
    var scales: Scales;
    for (var first_shared = 0u; first_shared < N_SHARED; first_shared += HELD) {
        load_heads(part, group.x, first_shared, lane);
        if first_shared == 0u {
            convolve(part, group.x, lane);
            workgroupBarrier();
            scales = scales_of(lane);
        }
        var outs: array<vec4<f32>, HELD>;
        var squares = vec4(0.0);
        for (var held = 0u; held < HELD; held++) {
            outs[held] = output_of(part, group.x, first_shared + held, held, scales, lane);
            for (var i = 0u; i < 4u; i++) {
                squares[held] += select(0.0, outs[held][i] * outs[held][i], i < n_written);
            }
        }
        squares = four_sums_of_lanes(squares, lanes);
        for (var held = 0u; held < HELD; held++) {
            let shared_idx = first_shared + held;
            let out_at = place_of(params.out, row, head_of(group.x, shared_idx)) + value_of(lane);
            let root = root_of(squares[held] / f32(VALUE_DIM) + params.epsilon);
            for (var i = 0u; i < 4u; i++) {
                if i < n_written && shared_idx < N_SHARED {
                    ws[out_at + i] = outs[held][i] / root * gain[i] * silu(gates[held][i]);
                }
            }
        }
    }
}
