// The unit that multiplies tiles of `coop_tile.wgsl`: cooperative matrices of a subgroup.

struct Unit {
    @builtin(local_invocation_index) invocation: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

alias Inputs = coop_mat16x16<f16, A>;
alias Outputs = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;

// By 16 inputs, then 16 rows of the matrix. Separate names keep them in registers.
var<private> sums_00: Sums;
var<private> sums_01: Sums;
var<private> sums_10: Sums;
var<private> sums_11: Sums;
var<private> sums_20: Sums;
var<private> sums_21: Sums;
var<private> sums_30: Sums;
var<private> sums_31: Sums;

fn stand_of(unit: Unit, group: vec3<u32>) -> Stand {
    return Stand(unit.subgroup, unit.lane, group);
}

fn begin_sums() {
    sums_00 = Sums();
    sums_01 = Sums();
    sums_10 = Sums();
    sums_11 = Sums();
    sums_20 = Sums();
    sums_21 = Sums();
    sums_30 = Sums();
    sums_31 = Sums();
}

// Adds the products of the tiles.
fn add_tile(stand: Stand) {
    let subgroup = stand.subgroup;
    let w_at = subgroup % 4u * 32u * ROW_QUADS;
    let x_first = subgroup / 4u * 64u * ROW_QUADS;
    for (var quad = 0u; quad < UNIT_QUADS; quad += 4u) {
        let w_0 = coopLoad<Outputs>(&w_tile[w_at + quad], ROW_QUADS);
        let w_1 = coopLoad<Outputs>(&w_tile[w_at + 16u * ROW_QUADS + quad], ROW_QUADS);
        let x_0 = coopLoadT<Inputs>(&x_tile[x_first + quad], ROW_QUADS);
        let x_1 = coopLoadT<Inputs>(&x_tile[x_first + 16u * ROW_QUADS + quad], ROW_QUADS);
        let x_2 = coopLoadT<Inputs>(&x_tile[x_first + 32u * ROW_QUADS + quad], ROW_QUADS);
        let x_3 = coopLoadT<Inputs>(&x_tile[x_first + 48u * ROW_QUADS + quad], ROW_QUADS);
        sums_00 = coopMultiplyAdd(x_0, w_0, sums_00);
        sums_01 = coopMultiplyAdd(x_0, w_1, sums_01);
        sums_10 = coopMultiplyAdd(x_1, w_0, sums_10);
        sums_11 = coopMultiplyAdd(x_1, w_1, sums_11);
        sums_20 = coopMultiplyAdd(x_2, w_0, sums_20);
        sums_21 = coopMultiplyAdd(x_2, w_1, sums_21);
        sums_30 = coopMultiplyAdd(x_3, w_0, sums_30);
        sums_31 = coopMultiplyAdd(x_3, w_1, sums_31);
    }
}

// Passes each subgroup's sums to the kernel's `take_sums`, 16 inputs at a time. The whole workgroup
// must call it together.
fn show_sums(stand: Stand) {
    let at = stand.subgroup * N_SHOWN;
    workgroupBarrier();
    coopStoreT(sums_00, &shown[at], 32u);
    coopStoreT(sums_01, &shown[at + 16u], 32u);
    workgroupBarrier();
    take_sums(stand, 0u);
    workgroupBarrier();
    coopStoreT(sums_10, &shown[at], 32u);
    coopStoreT(sums_11, &shown[at + 16u], 32u);
    workgroupBarrier();
    take_sums(stand, 16u);
    workgroupBarrier();
    coopStoreT(sums_20, &shown[at], 32u);
    coopStoreT(sums_21, &shown[at + 16u], 32u);
    workgroupBarrier();
    take_sums(stand, 32u);
    workgroupBarrier();
    coopStoreT(sums_30, &shown[at], 32u);
    coopStoreT(sums_31, &shown[at + 16u], 32u);
    workgroupBarrier();
    take_sums(stand, 48u);
}
