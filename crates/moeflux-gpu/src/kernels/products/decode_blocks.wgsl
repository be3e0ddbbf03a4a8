// Units of blocks, for `decode_matrix.wgsl`. The contents of a block are defined in
// `matrix/blocks/decoded.rs` of moeflux-kernels. Blocks are stored as in the file, one after the
// other. The large ones of 4 and 5 bits, and those with separate scales, begin at whole quads,
// others at any word, half word, or byte.
//
// Codes are kept as stored, or combined into whole bytes or nibbles, so that they fit a chunk. Four
// nibbles or bytes then become floats without a conversion.

const BLOCK_Q4_0: u32 = 0u;
const BLOCK_Q4_1: u32 = 1u;
const BLOCK_Q5_0: u32 = 2u;
const BLOCK_Q5_1: u32 = 3u;
const BLOCK_Q8_0: u32 = 4u;
const BLOCK_Q4_K: u32 = 5u;
const BLOCK_Q5_K: u32 = 6u;
const BLOCK_Q6_K: u32 = 7u;
const BLOCK_IQ2_XXS: u32 = 8u;
const BLOCK_IQ3_XXS: u32 = 9u;
const BLOCK_IQ4_NL: u32 = 10u;
const BLOCK_IQ4_XS: u32 = 11u;
const BLOCK_MXFP4: u32 = 12u;
const BLOCK_MXFP4_APART: u32 = 13u;

// Offsets of codebooks in `vectors`: see `codebooks.rs`.
const IQ4_VALUES: u32 = 0u;
const E2M1_VALUES: u32 = 16u;
const IQ3_XXS_GRID: u32 = 32u;
const IQ2_XXS_GRID: u32 = 288u;

// Masks for four bytes: the lower half of each, the lowest two bits, the lowest bit.
const NIBBLES: u32 = 0x0f0f0f0fu;
const PAIRS: u32 = 0x03030303u;
const BITS: u32 = 0x01010101u;

fn block_of(kind: u32) -> u32 {
    return (kind >> 4u) & 15u;
}

fn units_per_block(kind: u32) -> u32 {
    return (kind >> 8u) & 15u;
}

fn block_bytes_of(kind: u32) -> u32 {
    return kind >> 20u;
}

// Returns the first byte of the block of a unit, relative to the matrix.
fn byte_of_block(kind: u32, matrix: Matrix, row: u32, unit: u32) -> u32 {
    let n_units_before = row * (matrix.n_cols / UNIT_COLS) + unit;
    return n_units_before / units_per_block(kind) * block_bytes_of(kind);
}

// Returns words that begin `n_bytes` bytes into `low` and end in `behind`. Uses two shifts, because
// a shift by 32 is not allowed.
fn joined(low: vec4<u32>, behind: vec4<u32>, n_bytes: u32) -> vec4<u32> {
    let shift = vec4<u32>(n_bytes * 8u);
    return (low >> shift) | ((behind << vec4<u32>(1u)) << (vec4<u32>(31u) - shift));
}

fn four_words(at: u32) -> vec4<u32> {
    return vec4<u32>(
        stored_word(at),
        stored_word(at + 1u),
        stored_word(at + 2u),
        stored_word(at + 3u),
    );
}

// Return 4, 16 or 32 bytes from any offset on. The word after the last is read only if it has some
// of them, since a matrix may end there.
fn word_from(matrix: Matrix, byte: u32) -> u32 {
    let low = stored_word(matrix.codes + (byte >> 2u));
    let behind = stored_word(matrix.codes + ((byte + 3u) >> 2u));
    return joined(vec4<u32>(low), vec4<u32>(behind), byte & 3u).x;
}

fn quad_from(matrix: Matrix, byte: u32) -> vec4<u32> {
    let low = four_words(matrix.codes + (byte >> 2u));
    let behind = stored_word(matrix.codes + ((byte + 15u) >> 2u));
    return joined(low, vec4<u32>(low.yzw, behind), byte & 3u);
}

fn chunk_from(matrix: Matrix, byte: u32) -> Chunk {
    let at = matrix.codes + (byte >> 2u);
    let low = four_words(at);
    let high = four_words(at + 4u);
    let behind = stored_word(matrix.codes + ((byte + 31u) >> 2u));
    return Chunk(
        joined(low, vec4<u32>(low.yzw, high.x), byte & 3u),
        joined(high, vec4<u32>(high.yzw, behind), byte & 3u),
    );
}

// Returns two bytes from an even offset on; the upper bits are not cleared.
fn half_from(matrix: Matrix, byte: u32) -> u32 {
    return stored_word(matrix.codes + (byte >> 2u)) >> ((byte & 2u) * 8u);
}

fn float_from(matrix: Matrix, byte: u32) -> f32 {
    return unpack2x16float(half_from(matrix, byte)).x;
}

// Returns two whole quads of a quad-aligned block.
fn two_quads(matrix: Matrix, first: u32, quad: u32) -> Chunk {
    let at = (matrix.codes + (first >> 2u)) / 4u + quad;
    return Chunk(stored_quad(at), stored_quad(at + 1u));
}

fn load_block(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Chunk {
    let block = block_of(kind);
    let first = byte_of_block(kind, matrix, row, unit);
    let own = unit % units_per_block(kind);
    var chunk: Chunk;
    if block == BLOCK_Q4_K {
        // Each 32 bytes have two units: the lower halves, then the upper ones.
        return two_quads(matrix, first, 1u + own / 2u * 2u);
    } else if block == BLOCK_Q5_K {
        return load_q5_k(matrix, first, own);
    } else if block == BLOCK_Q6_K {
        return load_q6_k(matrix, first, own);
    } else if block == BLOCK_Q8_0 {
        return chunk_from(matrix, first + 2u);
    } else if block == BLOCK_Q4_0 || block == BLOCK_IQ4_NL {
        chunk.low = quad_from(matrix, first + 2u);
    } else if block == BLOCK_Q4_1 {
        chunk.low = quad_from(matrix, first + 4u);
    } else if block == BLOCK_Q5_0 {
        chunk.low = quad_from(matrix, first + 6u);
        chunk.high.x = word_from(matrix, first + 2u);
    } else if block == BLOCK_Q5_1 {
        chunk.low = quad_from(matrix, first + 8u);
        chunk.high.x = word_from(matrix, first + 4u);
    } else if block == BLOCK_MXFP4 {
        chunk.low = quad_from(matrix, first + 1u);
    } else if block == BLOCK_MXFP4_APART {
        chunk.low = stored_quad((matrix.codes + (first >> 2u)) / 4u);
    } else if block == BLOCK_IQ4_XS {
        chunk.low = quad_from(matrix, first + 8u + 16u * own);
    } else if block == BLOCK_IQ2_XXS {
        chunk.low.x = word_from(matrix, first + 2u + 8u * own);
        chunk.high.x = word_from(matrix, first + 6u + 8u * own);
    } else if block == BLOCK_IQ3_XXS {
        chunk.low.x = word_from(matrix, first + 2u + 8u * own);
        chunk.low.y = word_from(matrix, first + 6u + 8u * own);
        chunk.high.x = word_from(matrix, first + 66u + 4u * own);
    }
    return chunk;
}

// Combines codes into whole bytes: the fifth bits of unit `own` are bit `own` of 32 bytes.
fn load_q5_k(matrix: Matrix, first: u32, own: u32) -> Chunk {
    let fifths = two_quads(matrix, first, 1u);
    let codes = two_quads(matrix, first, 3u + own / 2u * 2u);
    let upper = vec4<u32>(own % 2u * 4u);
    let nibbles = vec4<u32>(NIBBLES);
    let bits = vec4<u32>(BITS);
    let low = (fifths.low >> vec4<u32>(own)) & bits;
    let high = (fifths.high >> vec4<u32>(own)) & bits;
    return Chunk(
        ((codes.low >> upper) & nibbles) | (low << vec4<u32>(4u)),
        ((codes.high >> upper) & nibbles) | (high << vec4<u32>(4u)),
    );
}

// The first quad has four bits of all codes, those of the latter 16 columns in the upper halves.
// Then follow two words with two bits of all codes, each quad's above those of the quad before it,
// and the scales of 16 columns each.
fn load_q6_k(matrix: Matrix, first: u32, own: u32) -> Chunk {
    let part = own % 4u;
    let codes = chunk_from(matrix, first + own / 4u * 64u + part % 2u * 32u);
    let upper = vec4<u32>(part / 2u * 4u);
    let nibbles = vec4<u32>(NIBBLES);
    let highest = chunk_from(matrix, first + 128u + own / 4u * 32u);
    let pairs = Chunk(
        (highest.low >> vec4<u32>(part * 2u)) & vec4<u32>(PAIRS),
        (highest.high >> vec4<u32>(part * 2u)) & vec4<u32>(PAIRS),
    );
    let places = vec4<u32>(0u, 2u, 4u, 6u);
    let low = pairs.low << places;
    let high = pairs.high << places;
    return Chunk(
        ((codes.low >> upper) & nibbles) | (((codes.high >> upper) & nibbles) << vec4<u32>(4u)),
        vec4<u32>(
            low.x | low.y | low.z | low.w,
            high.x | high.y | high.z | high.w,
            half_from(matrix, first + 192u + 2u * own),
            0u,
        ),
    );
}

fn affine_of_block(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Affine {
    let block = block_of(kind);
    let first = byte_of_block(kind, matrix, row, unit);
    let own = unit % units_per_block(kind);
    if block == BLOCK_Q4_K || block == BLOCK_Q5_K {
        return affine_of_six_bits(stored_quad((matrix.codes + (first >> 2u)) / 4u), own);
    }
    if block == BLOCK_Q4_1 || block == BLOCK_Q5_1 {
        let both = unpack2x16float(stored_word(matrix.codes + (first >> 2u)));
        return Affine(both.x, both.y);
    }
    if block == BLOCK_MXFP4 {
        return Affine(half_power(word_from(matrix, first) & 255u), 0.0);
    }
    if block == BLOCK_MXFP4_APART {
        let idx = row * (matrix.n_cols / UNIT_COLS) + unit;
        return Affine(half_power(stored_byte(matrix.scales, idx)), 0.0);
    }
    if block == BLOCK_Q6_K {
        return Affine(float_from(matrix, first + 208u), 0.0);
    }
    var factor = 1.0;
    if block == BLOCK_IQ4_XS {
        let high = half_from(matrix, first + 2u) >> (2u * own);
        let low = stored_word(matrix.codes + (first >> 2u) + 1u) >> (4u * own);
        factor = f32((low & 15u) | ((high & 3u) << 4u)) - 32.0;
    } else if block == BLOCK_IQ2_XXS {
        factor = (f32(word_from(matrix, first + 6u + 8u * own) >> 28u) + 0.5) * 0.25;
    } else if block == BLOCK_IQ3_XXS {
        factor = (f32(word_from(matrix, first + 66u + 4u * own) >> 28u) + 0.5) * 0.5;
    }
    return Affine(float_from(matrix, first) * factor, 0.0);
}

// Decodes the first quad of a block: two half floats, then eight scales and eight minima of 6 bits.
// The latter four of each have their upper bits above the former four.
fn affine_of_six_bits(head: vec4<u32>, own: u32) -> Affine {
    let bytes = (head.yzw >> vec3<u32>(own % 4u * 8u)) & vec3<u32>(255u);
    let former = bytes.xy & vec2<u32>(63u);
    let latter = (vec2<u32>(bytes.z, bytes.z >> 4u) & vec2<u32>(15u))
        | ((bytes.xy >> vec2<u32>(6u)) << vec2<u32>(4u));
    let whole = select(latter, former, own < 4u);
    let parts = bitcast<vec2<f32>>(whole | vec2<u32>(MAGIC_BITS)) - vec2<f32>(MAGIC);
    let both = unpack2x16float(head.x) * parts;
    return Affine(both.x, -both.y);
}

// Returns half of the power of two that an e8m0 encodes; all ones is NaN.
fn half_power(exponent: u32) -> f32 {
    let power = select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u);
    return bitcast<f32>(select(power, 0x7fc00000u, exponent == 255u));
}

// Returns whether units of a block have a bias.
fn block_has_bias(kind: u32) -> bool {
    let block = block_of(kind);
    return block == BLOCK_Q4_1 || block == BLOCK_Q5_1 || block == BLOCK_Q4_K || block == BLOCK_Q5_K;
}

fn quad_of_block(kind: u32, unit: u32, chunk: Chunk, quad: u32) -> vec4<f32> {
    let block = block_of(kind);
    if block == BLOCK_Q4_K {
        return from_bytes(word_of(chunk, quad) >> (unit % 2u * 4u), 15u, 0.0);
    }
    if block == BLOCK_Q5_K {
        return from_bytes(word_of(chunk, quad), 31u, 0.0);
    }
    if block == BLOCK_Q8_0 {
        return from_bytes(word_of(chunk, quad) ^ 0x80808080u, 255u, 128.0);
    }
    if block == BLOCK_IQ2_XXS {
        let entry = (chunk.low.x >> (quad / 2u * 8u)) & 255u;
        let values = vectors_value(IQ2_XXS_GRID + entry * 2u + quad % 2u);
        return with_signs(bitcast<u32>(values), chunk.high.x, quad);
    }
    if block == BLOCK_IQ3_XXS {
        let entry = (chunk.low[quad / 4u] >> (quad % 4u * 8u)) & 255u;
        return with_signs(bitcast<u32>(vectors_value(IQ3_XXS_GRID + entry)), chunk.high.x, quad);
    }
    if block == BLOCK_MXFP4_APART {
        // A byte has two adjacent columns; the four codes are spread to one byte each.
        let codes = chunk.low[quad / 2u] >> (quad % 2u * 16u);
        let spread = (codes & 15u) | ((codes & 0xf0u) << 4u);
        return from_values(
            E2M1_VALUES,
            spread | ((codes & 0xf00u) << 8u) | ((codes & 0xf000u) << 12u),
        );
    }
    // In the other kinds, a word has the codes of four columns in the lower halves, and those of
    // the columns 16 further in the upper halves.
    let nibbles = chunk.low[quad % 4u] >> (quad / 4u * 4u);
    if block == BLOCK_Q4_0 {
        return from_bytes(nibbles, 15u, 8.0);
    }
    if block == BLOCK_Q4_1 {
        return from_bytes(nibbles, 15u, 0.0);
    }
    if block == BLOCK_Q6_K {
        let pairs = (chunk.high[quad / 4u] >> (quad % 4u * 2u)) & PAIRS;
        let scale = f32(i32(chunk.high.z << (24u - quad / 4u * 8u)) >> 24u);
        return from_bytes((nibbles & NIBBLES) | (pairs << 4u), 63u, 32.0) * scale;
    }
    if block == BLOCK_IQ4_NL || block == BLOCK_IQ4_XS {
        return from_values(IQ4_VALUES, nibbles);
    }
    if block == BLOCK_MXFP4 {
        return from_values(E2M1_VALUES, nibbles);
    }
    // The fifth bits of four columns are adjacent; the product moves each into its byte.
    let fifths = (((chunk.high.x >> (quad * 4u)) & 15u) * 0x00204081u) & BITS;
    let offset = select(16.0, 0.0, block == BLOCK_Q5_1);
    return from_bytes((nibbles & NIBBLES) | (fifths << 4u), 31u, offset);
}

// Decodes four codes in the lower bits of bytes, minus an offset; exact, as in `packed_quad`.
fn from_bytes(word: u32, mask: u32, offset: f32) -> vec4<f32> {
    let masks = vec4<u32>(mask, mask << 8u, mask, mask << 8u);
    let codes = vec4<u32>(word, word, word >> 16u, word >> 16u) & masks;
    let down = vec4<f32>(1.0, 1.0 / 256.0, 1.0, 1.0 / 256.0);
    let magic = -MAGIC * down - vec4<f32>(offset);
    return fma(bitcast<vec4<f32>>(codes | vec4<u32>(MAGIC_BITS)), down, magic);
}

// Looks up four codes in the lower halves of bytes.
fn from_values(first: u32, word: u32) -> vec4<f32> {
    let codes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    return vec4<f32>(
        vectors_value(first + codes.x),
        vectors_value(first + codes.y),
        vectors_value(first + codes.z),
        vectors_value(first + codes.w),
    );
}

// Applies signs to four magnitudes. Each eight columns store seven signs; the eighth makes their
// number even.
fn with_signs(magnitudes: u32, signs: u32, quad: u32) -> vec4<f32> {
    let seven = (signs >> (quad / 2u * 7u)) & 127u;
    let eight = seven | (countOneBits(seven) << 7u);
    let own = (vec4<u32>(eight >> (quad % 2u * 4u)) << vec4<u32>(31u, 30u, 29u, 28u))
        & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(from_bytes(magnitudes, 63u, 0.0)) | own);
}
