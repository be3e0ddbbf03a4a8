// Emulates the unit that multiplies tiles of `coop_tile.wgsl` by single invocations, to test the
// surrounding code on devices without cooperative matrices. 32 neighbours stand for a subgroup.

struct Unit {
    @builtin(local_invocation_index) invocation: u32,
}

// Sums of one row of the matrix with each of 64 inputs.
var<private> sums: array<f32, 64>;

fn stand_of(unit: Unit, group: vec3<u32>) -> Stand {
    return Stand(unit.invocation / 32u, unit.invocation % 32u, group);
}

fn begin_sums() {
    sums = array<f32, 64>();
}

// Adds the products of the tiles.
fn add_tile(stand: Stand) {
    let w_at = (stand.subgroup % 4u * 32u + stand.lane) * ROW_QUADS;
    let x_first = stand.subgroup / 4u * 64u * ROW_QUADS;
    for (var quad = 0u; quad < UNIT_QUADS; quad++) {
        let w = vec4<f32>(w_tile[w_at + quad]);
        for (var input = 0u; input < 64u; input++) {
            let x = vec4<f32>(x_tile[x_first + input * ROW_QUADS + quad]);
            sums[input] = dot_onto(w, x, sums[input]);
        }
    }
}

// Passes each subgroup's sums to the kernel's `take_sums`, 16 inputs at a time. The whole workgroup
// must call it together.
fn show_sums(stand: Stand) {
    for (var first = 0u; first < 64u; first += 16u) {
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            shown[stand.subgroup * N_SHOWN + i * 32u + stand.lane] = sums[first + i];
        }
        workgroupBarrier();
        take_sums(stand, first);
    }
}
