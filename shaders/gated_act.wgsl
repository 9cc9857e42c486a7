// maths:  out[i] = act(x[2 i]) * x[2 i + 1]; gate and up alternate
// shapes: x [rows, 2 ffn], out [rows, ffn]
// grid:   x = up to ceil(ffn / WORKGROUP), strided, y = step row
// knobs:  ACT = lib/act_silu, act_gelu_tanh; WORKGROUP
// twin:   src/backend/cpu/kernels/gated_act.rs

#import step
#import ACT

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> x: array<f32>; // [rows, 2 ffn]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, ffn]

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if !is_active(step[id.y]) {
        return;
    }
    for (var i = id.x; i < params.width; i += groups.x * WORKGROUP) {
        let at = id.y * params.x_stride + params.x_offset + 2u * i;
        out[id.y * params.out_stride + params.out_offset + i] = activate(x[at]) * x[at + 1u];
    }
}
