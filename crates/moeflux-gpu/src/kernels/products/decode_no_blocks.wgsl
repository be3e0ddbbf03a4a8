// Placeholders for the block functions of `decode_matrix.wgsl`, if no kind is a block; never
// called.

fn load_block(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Chunk {
    return Chunk();
}

fn affine_of_block(kind: u32, matrix: Matrix, row: u32, unit: u32) -> Affine {
    return Affine();
}

fn block_has_bias(kind: u32) -> bool {
    return false;
}

fn quad_of_block(kind: u32, unit: u32, chunk: Chunk, quad: u32) -> vec4<f32> {
    return vec4<f32>();
}
