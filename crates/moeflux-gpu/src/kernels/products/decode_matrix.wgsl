// Decodes weights of any kind, one unit of 32 columns of a row at a time: first loads the stored
// data, then decodes four values at a time. `kind` is a constant at every call, so that only its
// branches remain after inlining: see `decode_matrix.rs` for its fields.

const UNIT_COLS: u32 = 32u;
const UNIT_QUADS: u32 = 8u;

const FORM_F32: u32 = 0u;
const FORM_F16: u32 = 1u;
const FORM_BF16: u32 = 2u;
const FORM_FP8: u32 = 3u;
const FORM_AFFINE: u32 = 4u;
const FORM_BLOCK: u32 = 5u;

// Form of scales only.
const FORM_E8M0: u32 = 3u;

// Stands for the logarithm of the rows if one scale of FP8 covers all of them.
const ALL_ROWS: u32 = 15u;

// Location of a matrix, in words: see `stored.wgsl`.
struct Matrix {
    codes: u32,
    scales: u32,
    biases: u32,
    n_rows: u32,
    n_cols: u32,
}

// The codes of a unit. Plain floats do not fit, and are loaded when needed.
struct Chunk {
    low: vec4<u32>,
    high: vec4<u32>,
}

struct Affine {
    scale: f32,
    bias: f32,
}

fn form_of(kind: u32) -> u32 {
    return kind & 15u;
}

fn bits_of(kind: u32) -> u32 {
    return (kind >> 4u) & 15u;
}

fn units_per_group(kind: u32) -> u32 {
    return (kind >> 8u) & 15u;
}

fn scale_form_of(kind: u32) -> u32 {
    return (kind >> 12u) & 15u;
}

// Returns whether rows are whole units: each then begins at a multiple of 16 bytes.
fn is_whole(kind: u32) -> bool {
    return ((kind >> 16u) & 1u) == 1u;
}

// Returns whether affine codes have no biases, and the middle code is zero.
fn has_implied_bias(kind: u32) -> bool {
    return ((kind >> 17u) & 1u) == 1u;
}

fn n_units_of(matrix: Matrix) -> u32 {
    return (matrix.n_cols + UNIT_COLS - 1u) / UNIT_COLS;
}

// Returns word `idx` of a row of `row_bytes` bytes at any alignment. Bytes after the row are zero.
fn loose_word(matrix: Matrix, row_bytes: u32, row: u32, idx: u32) -> u32 {
    let begin = idx * 4u;
    if begin >= row_bytes {
        return 0u;
    }
    let byte = row * row_bytes + begin;
    let at = matrix.codes + (byte >> 2u);
    let shift = (byte & 3u) * 8u;
    var value = stored_word(at) >> shift;
    if shift > 0u {
        value |= stored_word(at + 1u) << (32u - shift);
    }
    let n_left = row_bytes - begin;
    if n_left < 4u {
        value &= (1u << (n_left * 8u)) - 1u;
    }
    return value;
}

// Loads the codes of a unit of a row. Plain floats need none.
fn load_chunk(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Chunk {
    var chunk: Chunk;
    if form_of(kind) == FORM_AFFINE {
        return load_packed(bits_of(kind), matrix, row, unit);
    }
    if form_of(kind) == FORM_BLOCK {
        return load_block(kind, matrix, row, unit);
    }
    if form_of(kind) == FORM_FP8 {
        if is_whole(kind) {
            let at = (matrix.codes + row * matrix.n_cols / 4u) / 4u + unit * 2u;
            chunk.low = stored_quad(at);
            chunk.high = stored_quad(at + 1u);
        } else {
            for (var i = 0u; i < 4u; i++) {
                chunk.low[i] = loose_word(matrix, matrix.n_cols, row, unit * 8u + i);
                chunk.high[i] = loose_word(matrix, matrix.n_cols, row, unit * 8u + 4u + i);
            }
        }
    }
    return chunk;
}

// Loads 32 codes of `bits` bits, which are `bits` words. Rows are whole units.
fn load_packed(bits: u32, matrix: Matrix, row: u32, unit: u32) -> Chunk {
    var chunk: Chunk;
    let at = matrix.codes + (row * (matrix.n_cols / UNIT_COLS) + unit) * bits;
    if bits == 4u {
        chunk.low = stored_quad(at >> 2u);
    } else if bits == 8u {
        chunk.low = stored_quad(at >> 2u);
        chunk.high = stored_quad((at >> 2u) + 1u);
    } else {
        chunk.low.x = stored_word(at);
        chunk.low.y = stored_word(at + 1u);
        if bits > 2u {
            chunk.low.z = stored_word(at + 2u);
        }
        if bits > 3u {
            chunk.low.w = stored_word(at + 3u);
            chunk.high.x = stored_word(at + 4u);
        }
        if bits > 5u {
            chunk.high.y = stored_word(at + 5u);
        }
    }
    return chunk;
}

fn word_of(chunk: Chunk, idx: u32) -> u32 {
    if idx < 4u {
        return chunk.low[idx & 3u];
    }
    return chunk.high[idx & 3u];
}

// Returns values `4 * quad ..` of a unit, not yet scaled. Columns after the row are zero.
fn quad_of(kind: u32, matrix: Matrix, row: u32, unit: u32, chunk: Chunk, quad: u32) -> vec4<f32> {
    if form_of(kind) == FORM_AFFINE {
        return packed_quad(bits_of(kind), chunk, quad);
    }
    if form_of(kind) == FORM_BLOCK {
        return quad_of_block(kind, unit, chunk, quad);
    }
    if form_of(kind) == FORM_FP8 {
        return from_e4m3(word_of(chunk, quad));
    }
    return float_quad(kind, matrix, row, unit * UNIT_QUADS + quad);
}

// The mantissa of a float of 2^23 and more ends in whole numbers. Codes inserted there become
// floats after one subtraction, which is faster than a conversion.
const MAGIC_BITS: u32 = 0x4b000000u;
const MAGIC: f32 = 8388608.0;

fn packed_quad(bits: u32, chunk: Chunk, quad: u32) -> vec4<f32> {
    let first_bit = 4u * bits * quad;
    let shift = first_bit & 31u;
    var low = word_of(chunk, first_bit >> 5u) >> shift;
    if shift + 4u * bits > 32u {
        low |= word_of(chunk, (first_bit >> 5u) + 1u) << (32u - shift);
    }
    let places = vec4<u32>(0u, bits, 2u * bits, 3u * bits);
    let mask = vec4<u32>((1u << bits) - 1u);
    if bits > 5u {
        let codes = (vec4<u32>(low) >> places) & mask;
        return bitcast<vec4<f32>>(codes | vec4<u32>(MAGIC_BITS)) - vec4<f32>(MAGIC);
    }
    // Four codes fit the mantissa in place; powers of two scale them down, exactly.
    let codes = vec4<u32>(low) & (mask << places);
    let down = bitcast<vec4<f32>>((vec4<u32>(127u) - places) << vec4<u32>(23u));
    return fma(bitcast<vec4<f32>>(codes | vec4<u32>(MAGIC_BITS)), down, -MAGIC * down);
}

// Decodes four bytes of e4m3: exponent bias 7, no infinity, NaN if all lower bits are set.
// Subnormals are computed without denormal operands, which devices may flush to zero.
fn from_e4m3(bytes: u32) -> vec4<f32> {
    let codes = (vec4<u32>(bytes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    let magnitudes = codes & vec4<u32>(127u);
    let normal = (magnitudes << vec4<u32>(20u)) + vec4<u32>(120u << 23u);
    let subnormal = bitcast<vec4<u32>>(vec4<f32>(magnitudes) * (1.0 / 512.0));
    var values = select(normal, subnormal, magnitudes < vec4<u32>(8u));
    values = select(values, vec4<u32>(0x7fc00000u), magnitudes == vec4<u32>(127u));
    return bitcast<vec4<f32>>(values | ((codes & vec4<u32>(128u)) << vec4<u32>(24u)));
}

// Returns values `4 * quad ..` of a row of plain floats.
fn float_quad(kind: u32, matrix: Matrix, row: u32, quad: u32) -> vec4<f32> {
    if form_of(kind) == FORM_F32 {
        if is_whole(kind) {
            let at = (matrix.codes + row * matrix.n_cols) / 4u + quad;
            return bitcast<vec4<f32>>(stored_quad(at));
        }
        var words: vec4<u32>;
        for (var i = 0u; i < 4u; i++) {
            words[i] = loose_word(matrix, matrix.n_cols * 4u, row, quad * 4u + i);
        }
        return bitcast<vec4<f32>>(words);
    }
    var words: vec2<u32>;
    if is_whole(kind) {
        let pair = stored_quad((matrix.codes + row * matrix.n_cols / 2u) / 4u + quad / 2u);
        words = select(pair.xy, pair.zw, (quad & 1u) == 1u);
    } else {
        words.x = loose_word(matrix, matrix.n_cols * 2u, row, quad * 2u);
        words.y = loose_word(matrix, matrix.n_cols * 2u, row, quad * 2u + 1u);
    }
    if form_of(kind) == FORM_F16 {
        return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    }
    let halves = vec4<u32>(words.x << 16u, words.x, words.y << 16u, words.y);
    return bitcast<vec4<f32>>(halves & vec4<u32>(0xffff0000u));
}

// Returns byte `idx` counted from a word.
fn stored_byte(first: u32, idx: u32) -> u32 {
    return (stored_word(first + (idx >> 2u)) >> ((idx & 3u) * 8u)) & 255u;
}

// Returns value `idx` counted from a word.
fn stored_float(form: u32, first: u32, idx: u32) -> f32 {
    if form == FORM_F32 {
        return bitcast<f32>(stored_word(first + idx));
    }
    let half = (stored_word(first + (idx >> 1u)) >> ((idx & 1u) * 16u)) & 0xffffu;
    if form == FORM_F16 {
        return unpack2x16float(half).x;
    }
    return bitcast<f32>(half << 16u);
}

// Returns the scale of a unit of FP8: of its block, of its row, or of the matrix.
fn scale_of_fp8(kind: u32, matrix: Matrix, row: u32, unit: u32) -> f32 {
    let per_scale = bits_of(kind);
    let rows = units_per_group(kind);
    var idx = select(row >> rows, 0u, rows == ALL_ROWS);
    if per_scale > 0u {
        idx = idx * ((n_units_of(matrix) + per_scale - 1u) / per_scale) + unit / per_scale;
    }
    if scale_form_of(kind) == FORM_E8M0 {
        let exponent = stored_byte(matrix.scales, idx);
        let power = select(exponent << 23u, 0x00400000u, exponent == 0u);
        return bitcast<f32>(select(power, 0x7fc00000u, exponent == 255u));
    }
    return stored_float(scale_form_of(kind), matrix.scales, idx);
}

// Returns the factors that turn a unit's values into weights: `value * scale + bias`.
fn affine_of(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Affine {
    if form_of(kind) == FORM_AFFINE {
        let per_group = units_per_group(kind);
        let idx = row * (matrix.n_cols / (UNIT_COLS * per_group)) + unit / per_group;
        let form = scale_form_of(kind);
        let scale = stored_float(form, matrix.scales, idx);
        if has_implied_bias(kind) {
            return Affine(scale, scale * -f32(1u << (bits_of(kind) - 1u)));
        }
        return Affine(scale, stored_float(form, matrix.biases, idx));
    }
    if form_of(kind) == FORM_BLOCK {
        return affine_of_block(kind, matrix, row, unit);
    }
    if form_of(kind) == FORM_FP8 {
        return Affine(scale_of_fp8(kind, matrix, row, unit), 0.0);
    }
    return Affine(1.0, 0.0);
}

// Returns whether values are weights without scaling.
fn is_plain(kind: u32) -> bool {
    return form_of(kind) < FORM_FP8;
}

fn has_bias(kind: u32) -> bool {
    return form_of(kind) == FORM_AFFINE || (form_of(kind) == FORM_BLOCK && block_has_bias(kind));
}

// Adds w . x to a sum.
fn dot_onto(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
    return fma(w.x, x.x, fma(w.y, x.y, fma(w.z, x.z, fma(w.w, x.w, sum))));
}
