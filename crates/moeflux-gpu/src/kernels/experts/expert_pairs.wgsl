// Sorts pairs by expert into tiles of TILE_INPUTS. Each expert has its own tiles, the last of them
// with gaps. One workgroup handles all rows. The place of a pair within its expert's tiles differs
// from run to run; its result does not.

const N_OWN: u32 = (N_EXPERTS + N_INVOCATIONS - 1u) / N_INVOCATIONS;

// By expert: the number of pairs, then the next free place in `pairs`.
var<workgroup> counts: array<atomic<u32>, N_EXPERTS>;
// Tiles of each invocation's own experts, then their inclusive prefix sum.
var<workgroup> n_tiles: array<u32, N_INVOCATIONS>;

fn tiles_for(n_pairs: u32) -> u32 {
    return (n_pairs + TILE_INPUTS - 1u) / TILE_INPUTS;
}

fn expert_of(pair: u32) -> u32 {
    return min(routes[params.step.first_row * params.top_k + pair].x, N_EXPERTS - 1u);
}

// Computes the inclusive prefix sum of the tiles over all invocations.
fn scan(invocation: u32) {
    for (var distance = 1u; distance < N_INVOCATIONS; distance *= 2u) {
        workgroupBarrier();
        var before = 0u;
        if invocation >= distance {
            before = n_tiles[invocation - distance];
        }
        workgroupBarrier();
        n_tiles[invocation] += before;
    }
    workgroupBarrier();
}

// Writes the expert of the tiles from `first` on, and the gaps in the last of them.
fn describe(expert: u32, first: u32, n_pairs: u32) {
    let n = tiles_for(n_pairs);
    for (var tile = 0u; tile < n; tile++) {
        ws[params.tiles + first + tile] = f32(expert);
    }
    for (var i = n_pairs; i < n * TILE_INPUTS; i++) {
        ws[params.pairs + first * TILE_INPUTS + i] = ABSENT;
    }
}

@compute @workgroup_size(N_INVOCATIONS)
fn main(@builtin(local_invocation_index) invocation: u32) {
    let n_pairs = params.step.n_rows * params.top_k;
    let first_expert = invocation * N_OWN;
    let end_expert = min(first_expert + N_OWN, N_EXPERTS);
    for (var expert = first_expert; expert < end_expert; expert++) {
        atomicStore(&counts[expert], 0u);
    }
    workgroupBarrier();
    for (var pair = invocation; pair < n_pairs; pair += N_INVOCATIONS) {
        atomicAdd(&counts[expert_of(pair)], 1u);
    }
    workgroupBarrier();
    var n_own = 0u;
    for (var expert = first_expert; expert < end_expert; expert++) {
        n_own += tiles_for(atomicLoad(&counts[expert]));
    }
    n_tiles[invocation] = n_own;
    scan(invocation);
    var first = n_tiles[invocation] - n_own;
    for (var expert = first_expert; expert < end_expert; expert++) {
        let n = atomicLoad(&counts[expert]);
        describe(expert, first, n);
        if n > 0u && slots[params.step.place + expert] != NONE {
            note_use(expert, n);
        }
        atomicStore(&counts[expert], first * TILE_INPUTS);
        first += tiles_for(n);
    }
    // The grid of the kernels that read this covers the maximum possible number of tiles.
    let n_used = n_tiles[N_INVOCATIONS - 1u];
    let n_most = N_EXPERTS + tiles_for(params.step.n_rows) * params.top_k;
    for (var tile = n_used + invocation; tile < n_most; tile += N_INVOCATIONS) {
        ws[params.tiles + tile] = ABSENT;
    }
    workgroupBarrier();
    for (var pair = invocation; pair < n_pairs; pair += N_INVOCATIONS) {
        let place = atomicAdd(&counts[expert_of(pair)], 1u);
        ws[params.pairs + place] = f32(pair);
    }
}
