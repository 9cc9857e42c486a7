// Sums and maxima over a workgroup through subgroups of any size. The order is that of the subgroups, so
// results repeat. Every lane gets the result; a kernel that reduces twice calls workgroupBarrier() between.

struct Entry {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
}

var<workgroup> reduce_partial: array<vec4<f32>, 64>; // a workgroup of 256 has at most 64 subgroups

fn reduce_add(value: vec4<f32>, in: Entry) -> vec4<f32> {
    let sum = subgroupAdd(value);
    if in.subgroup_lane == 0u {
        reduce_partial[in.subgroup] = sum;
    }
    workgroupBarrier();
    var total = vec4<f32>(0.0);
    for (var i = 0u; i < in.subgroups; i++) {
        total += reduce_partial[i];
    }
    return total;
}

fn reduce_max(value: f32, in: Entry) -> f32 {
    let largest = subgroupMax(value);
    if in.subgroup_lane == 0u {
        reduce_partial[in.subgroup].x = largest;
    }
    workgroupBarrier();
    var total = reduce_partial[0].x;
    for (var i = 1u; i < in.subgroups; i++) {
        total = max(total, reduce_partial[i].x);
    }
    return total;
}
