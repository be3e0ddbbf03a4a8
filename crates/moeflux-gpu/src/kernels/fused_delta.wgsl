// A layer of gated DeltaNet for one row: key heads along x. See causal_conv.wgsl, l2_norm.wgsl,
// gated_delta.wgsl and rms_norm.wgsl for each of its parts.

struct Params {
    step: Step,
    x: View,
    a: View,
    b: View,
    gate: View,
    out: View,
    q_channel: u32,
    k_channel: u32,
    v_channel: u32,
    weight: u32,
    a_log: u32,
    dt_bias: u32,
    gain: u32,
    q_factor: f32,
    k_factor: f32,
    key_epsilon: f32,
    epsilon: f32,
}

// Keys of a value are in so many parts, of N_OWN keys in an invocation's registers.
const N_PARTS: u32 = N_LANES / VALUE_LANES;
const VALUES_AT: u32 = 2u * KEY_DIM;
const N_MIXED: u32 = VALUES_AT + N_SHARED * VALUE_DIM;
const MIXED_EACH: u32 = (N_MIXED + N_LANES - 1u) / N_LANES;

// What the convolution gives: the query, the key, then the values of all heads that share them.
var<workgroup> mixed: array<f32, N_MIXED>;
// By head at once and invocation: its part of S k and of S q.
var<workgroup> products: array<vec2<f32>, HELD * N_LANES>;

// Of HELD heads at once: an invocation's part of their states, and what else is read of memory, so
// that all of it is on its way before anything waits.
var<private> states: array<f32, HELD * N_OWN>;
var<private> decays: array<f32, HELD>;
var<private> betas: array<f32, HELD>;
var<private> gates: array<f32, HELD>;

fn channel_of(place: u32, key_head: u32) -> u32 {
    if place < KEY_DIM {
        return params.q_channel + key_head * KEY_DIM + place;
    }
    if place < VALUES_AT {
        return params.k_channel + key_head * KEY_DIM + place - KEY_DIM;
    }
    return params.v_channel + key_head * N_SHARED * VALUE_DIM + place - VALUES_AT;
}

// Fills `mixed`; what channels keep moves on by one.
fn convolve(key_head: u32, lane: u32) {
    var inputs: array<f32, MIXED_EACH * N_TAPS>;
    for (var i = 0u; i < MIXED_EACH; i++) {
        let place = i * N_LANES + lane;
        if place < N_MIXED {
            let channel = channel_of(place, key_head);
            for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
                inputs[i * N_TAPS + tap] = first[tap * N_CHANNELS + channel];
            }
            let newest = place_of(params.x, params.step.first_row, 0u) + channel;
            inputs[i * N_TAPS + N_TAPS - 1u] = ws[newest];
        }
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
            for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
                first[tap * N_CHANNELS + channel] = inputs[i * N_TAPS + tap + 1u];
            }
        }
    }
}

// The sums of squares of the query and the key, and their product, of the first KEY_DIM
// invocations: such workgroups have no fewer.
fn squares_of(lane: u32) -> vec4<f32> {
    var own = vec4(0.0);
    for (var key = lane; key < KEY_DIM; key += N_LANES) {
        let q = mixed[key];
        let k = mixed[KEY_DIM + key];
        own += vec4(q * q, k * k, q * k, 0.0);
    }
    return own;
}

// Keys from one on that are this invocation's.
fn first_key_of(lane: u32) -> u32 {
    return lane / VALUE_LANES * N_OWN;
}

// Where an invocation's value of the first key lies in a head's state; those of the next follow
// `width_of` apart.
fn state_at(head: u32, lane: u32) -> u32 {
    let value = lane % VALUE_LANES;
    let strip = value / STRIP * STRIP;
    return (head * VALUE_DIM + strip) * KEY_DIM + value - strip
        + first_key_of(lane) * width_of(lane);
}

fn width_of(lane: u32) -> u32 {
    let value = lane % VALUE_LANES;
    return min(STRIP, VALUE_DIM - min(value / STRIP * STRIP, VALUE_DIM));
}

fn n_keys_of(lane: u32) -> u32 {
    if lane % VALUE_LANES >= VALUE_DIM {
        return 0u;
    }
    return min(N_OWN, KEY_DIM - min(first_key_of(lane), KEY_DIM));
}

// Heads behind the last are taken for the last: nothing is written of them.
fn head_of(key_head: u32, shared_idx: u32) -> u32 {
    return key_head * N_SHARED + min(shared_idx, N_SHARED - 1u);
}

fn load_heads(key_head: u32, first_shared: u32, lane: u32) {
    let row = params.step.first_row;
    let n_keys = n_keys_of(lane);
    let width = width_of(lane);
    for (var held = 0u; held < HELD; held++) {
        let head = head_of(key_head, first_shared + held);
        let at = state_at(head, lane);
        for (var own = 0u; own < N_OWN; own++) {
            states[held * N_OWN + own] = 0.0;
            if own < n_keys {
                states[held * N_OWN + own] = second[at + own * width];
            }
        }
        let col = min(lane % VALUE_LANES, VALUE_DIM - 1u);
        gates[held] = ws[place_of(params.gate, row, head) + col];
        let a = ws[place_of(params.a, row, 0u) + head];
        decays[held] = decay_of(a, vectors[params.a_log + head], vectors[params.dt_bias + head]);
        betas[held] = sigmoid(ws[place_of(params.b, row, 0u) + head]);
    }
}

fn multiply_states(lane: u32) {
    var sums: array<vec2<f32>, HELD>;
    for (var own = 0u; own < N_OWN; own++) {
        // What lies behind the last key meets zeros, but must be a number.
        let key = min(first_key_of(lane) + own, KEY_DIM - 1u);
        let factors = vec2(mixed[KEY_DIM + key], mixed[key]);
        for (var held = 0u; held < HELD; held++) {
            sums[held] = fma(vec2(states[held * N_OWN + own]), factors, sums[held]);
        }
    }
    for (var held = 0u; held < HELD; held++) {
        products[held * N_LANES + lane] = sums[held];
    }
}

// Factors of the query and the key, and the product of the two with their factors.
struct Scales {
    q: f32,
    k: f32,
    product: f32,
}

fn scales_of(squares: vec4<f32>) -> Scales {
    var scales: Scales;
    scales.q = params.q_factor / sqrt(squares.x + params.key_epsilon);
    scales.k = params.k_factor / sqrt(squares.y + params.key_epsilon);
    scales.product = squares.z * scales.q * scales.k;
    return scales;
}

// The delta rule of one value of a head; all invocations of a value get its output.
fn output_of(key_head: u32, shared_idx: u32, held: u32, scales: Scales, lane: u32) -> f32 {
    let value = lane % VALUE_LANES;
    if value >= VALUE_DIM || shared_idx >= N_SHARED {
        return 0.0;
    }
    var sums = vec2(0.0);
    for (var part = 0u; part < N_PARTS; part++) {
        sums += products[held * N_LANES + part * VALUE_LANES + value];
    }
    let decay = decays[held];
    let v = mixed[VALUES_AT + shared_idx * VALUE_DIM + value];
    let delta = (v - decay * sums.x * scales.k) * betas[held];
    let at = state_at(head_of(key_head, shared_idx), lane);
    let n_keys = n_keys_of(lane);
    let width = width_of(lane);
    for (var own = 0u; own < N_OWN; own++) {
        if own < n_keys {
            let k = mixed[KEY_DIM + first_key_of(lane) + own] * scales.k;
            second[at + own * width] = decay * states[held * N_OWN + own] + delta * k;
        }
    }
    return decay * sums.y * scales.q + delta * scales.product;
}

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row;
    let lane = lanes.lane;
    let col = min(lane, VALUE_DIM - 1u);
    let gain = vectors[params.gain + col];
    var scales: Scales;
    for (var first_shared = 0u; first_shared < N_SHARED; first_shared += HELD) {
        load_heads(group.x, first_shared, lane);
        if first_shared == 0u {
            convolve(group.x, lane);
            workgroupBarrier();
        }
        multiply_states(lane);
        if first_shared == 0u {
            scales = scales_of(four_sums_of_lanes(squares_of(lane), lanes));
        } else {
            workgroupBarrier();
        }
        var outs: array<f32, HELD>;
        var squares = vec4(0.0);
        for (var held = 0u; held < HELD; held++) {
            outs[held] = output_of(group.x, first_shared + held, held, scales, lane);
            // One invocation of each value counts.
            squares[held] = select(0.0, outs[held] * outs[held], lane < VALUE_DIM);
        }
        squares = four_sums_of_lanes(squares, lanes);
        for (var held = 0u; held < HELD; held++) {
            let shared_idx = first_shared + held;
            if lane < VALUE_DIM && shared_idx < N_SHARED {
                let root = sqrt(squares[held] / f32(VALUE_DIM) + params.epsilon);
                let out_at = place_of(params.out, row, head_of(group.x, shared_idx));
                ws[out_at + lane] = outs[held] / root * gain * silu(gates[held]);
            }
        }
    }
}
