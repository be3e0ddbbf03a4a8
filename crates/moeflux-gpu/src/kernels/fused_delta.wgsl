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

// What the convolution gives: the query, the key, then the values of all heads that share them.
var<workgroup> mixed: array<f32, N_MIXED>;
// By invocation: its part of S k and of S q.
var<workgroup> products: array<vec2<f32>, N_LANES>;

fn channel_of(place: u32, key_head: u32) -> u32 {
    if place < KEY_DIM {
        return params.q_channel + key_head * KEY_DIM + place;
    }
    if place < VALUES_AT {
        return params.k_channel + key_head * KEY_DIM + place - KEY_DIM;
    }
    return params.v_channel + key_head * N_SHARED * VALUE_DIM + place - VALUES_AT;
}

// One channel's output; what the channel keeps moves on by one.
fn convolved(channel: u32) -> f32 {
    let weight_at = params.weight + channel * N_TAPS;
    let newest = ws[place_of(params.x, params.step.first_row, 0u) + channel];
    var sum = 0.0;
    for (var tap = 0u; tap < N_TAPS - 1u; tap++) {
        let at = tap * N_CHANNELS + channel;
        sum = fma(vectors[weight_at + tap], first[at], sum);
        var next = newest;
        if tap + 2u < N_TAPS {
            next = first[at + N_CHANNELS];
        }
        first[at] = next;
    }
    return silu(fma(vectors[weight_at + N_TAPS - 1u], newest, sum));
}

// Factors of the query and the key, and the product of the two with their factors.
struct Scales {
    q: f32,
    k: f32,
    product: f32,
}

fn scales_of(lanes: Lanes) -> Scales {
    var own = vec3(0.0);
    for (var key = lanes.lane; key < KEY_DIM; key += N_LANES) {
        let q = mixed[key];
        let k = mixed[KEY_DIM + key];
        own += vec3(q * q, k * k, q * k);
    }
    var scales: Scales;
    scales.q = params.q_factor / sqrt(sum_of_lanes(own.x, lanes) + params.key_epsilon);
    scales.k = params.k_factor / sqrt(sum_of_lanes(own.y, lanes) + params.key_epsilon);
    scales.product = sum_of_lanes(own.z, lanes) * scales.q * scales.k;
    return scales;
}

// The delta rule of one value of a head; all invocations of a value get its output.
fn output_of(head: u32, shared_idx: u32, scales: Scales, lane: u32) -> f32 {
    let row = params.step.first_row;
    let value = lane % VALUE_LANES;
    let first_key = lane / VALUE_LANES * N_OWN;
    let strip = value / STRIP * STRIP;
    let width = min(STRIP, VALUE_DIM - min(strip, VALUE_DIM));
    let state_at = (head * VALUE_DIM + strip) * KEY_DIM + value - strip;
    var state: array<f32, N_OWN>;
    for (var own = 0u; own < N_OWN; own++) {
        state[own] = 0.0;
        if value < VALUE_DIM && first_key + own < KEY_DIM {
            state[own] = second[state_at + (first_key + own) * width];
        }
    }
    var product = vec2(0.0);
    for (var own = 0u; own < N_OWN; own++) {
        if first_key + own < KEY_DIM {
            product.x = fma(state[own], mixed[KEY_DIM + first_key + own], product.x);
            product.y = fma(state[own], mixed[first_key + own], product.y);
        }
    }
    // The products of the head before have been read.
    workgroupBarrier();
    products[lane] = product;
    workgroupBarrier();
    var sums = vec2(0.0);
    for (var part = 0u; part < N_PARTS; part++) {
        sums += products[part * VALUE_LANES + value];
    }
    let a = ws[place_of(params.a, row, 0u) + head];
    let decay = decay_of(a, vectors[params.a_log + head], vectors[params.dt_bias + head]);
    let beta = sigmoid(ws[place_of(params.b, row, 0u) + head]);
    if value >= VALUE_DIM {
        return 0.0;
    }
    let v = mixed[VALUES_AT + shared_idx * VALUE_DIM + value];
    let delta = (v - decay * sums.x * scales.k) * beta;
    for (var own = 0u; own < N_OWN; own++) {
        if first_key + own < KEY_DIM {
            let k = mixed[KEY_DIM + first_key + own] * scales.k;
            second[state_at + (first_key + own) * width] = decay * state[own] + delta * k;
        }
    }
    return decay * sums.y * scales.q + delta * scales.product;
}

@compute @workgroup_size(N_LANES)
fn main(lanes: Lanes, @builtin(workgroup_id) group: vec3<u32>) {
    let row = params.step.first_row;
    for (var place = lanes.lane; place < N_MIXED; place += N_LANES) {
        mixed[place] = convolved(channel_of(place, group.x));
    }
    workgroupBarrier();
    let scales = scales_of(lanes);
    for (var shared_idx = 0u; shared_idx < N_SHARED; shared_idx++) {
        let head = group.x * N_SHARED + shared_idx;
        let out = output_of(head, shared_idx, scales, lanes.lane);
        // One invocation of each value counts.
        let is_first = lanes.lane < VALUE_DIM;
        let squares = sum_of_lanes(select(0.0, out * out, is_first), lanes);
        if is_first {
            let root = sqrt(squares / f32(VALUE_DIM) + params.epsilon);
            let gate = ws[place_of(params.gate, row, head) + lanes.lane];
            let normed = out / root * vectors[params.gain + lanes.lane];
            ws[place_of(params.out, row, head) + lanes.lane] = normed * silu(gate);
        }
    }
}
