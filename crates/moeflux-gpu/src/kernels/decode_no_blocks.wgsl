// What `decode_matrix.wgsl` asks of blocks, where no kind is one: nothing of it is called.

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
