// maths:  status = min(status, layer) when a number of x is not finite, tested on bits
// shapes: x [rows, n], status [1]
// grid:   x = up to ceil(n / WORKGROUP), strided, y = step row
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/check_finite.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    x_offset: u32,
    x_stride: u32,
    layer: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> x: array<u32>; // [rows, n], bits
@group(0) @binding(3) var<storage, read_write> status: atomic<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if !is_active(step[id.y]) {
        return;
    }
    for (var i = id.x; i < params.width; i += groups.x * WORKGROUP) {
        let bits = x[id.y * params.x_stride + params.x_offset + i];
        if (bits & 0x7f800000u) == 0x7f800000u {
            atomicMin(&status, params.layer);
        }
    }
}
