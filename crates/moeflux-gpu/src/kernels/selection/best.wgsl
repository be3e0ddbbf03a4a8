// Sorts chunks of a row; each writes a list of its best values: chunks along x, rows along y.

var<workgroup> keys: array<u32, CHUNK>;
var<workgroup> columns: array<u32, CHUNK>;

// Larger for larger values, largest for NaN, equal for 0 and -0; never 0.
fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return 0xffffffffu;
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key > 0x7fffffffu));
}

fn comes_before(left: u32, right: u32) -> bool {
    return keys[left] > keys[right]
        || (keys[left] == keys[right] && columns[left] < columns[right]);
}

fn swap(left: u32, right: u32) {
    let key = keys[left];
    keys[left] = keys[right];
    keys[right] = key;
    let column = columns[left];
    columns[left] = columns[right];
    columns[right] = column;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = params.step.first_row + group.y;
    let first = group.x * CHUNK;
    let x = place_of(params.x, row, 0u);
    for (var i = lane; i < CHUNK; i += LANES) {
        // Places after the last value sort after all values.
        var key = 0u;
        var column = NONE;
        let at = first + i;
        if at < params.n {
            key = key_of(ws[x + at]);
            column = at;
            if params.columns_at != NONE {
                column = u32(ws[x + params.columns_at + at]);
            }
        }
        keys[i] = key;
        columns[i] = column;
    }
    // Bitonic sort: runs of doubling length, alternately best first and best last, until one run is
    // left.
    for (var length = 2u; length <= CHUNK; length *= 2u) {
        for (var stride = length / 2u; stride > 0u; stride /= 2u) {
            workgroupBarrier();
            for (var pair = lane; pair < CHUNK / 2u; pair += LANES) {
                let left = 2u * pair - (pair & (stride - 1u));
                let right = left + stride;
                let is_best_first = (left & length) == 0u;
                if comes_before(right, left) == is_best_first {
                    swap(left, right);
                }
            }
        }
    }
    workgroupBarrier();
    let n_left = min(params.n_best, params.n - first);
    let out = place_of(params.out, row, 0u) + group.x * params.n_best;
    for (var i = lane; i < n_left; i += LANES) {
        ws[out + i] = value_of(keys[i]);
        ws[out + params.out_columns_at + i] = f32(columns[i]);
    }
}
