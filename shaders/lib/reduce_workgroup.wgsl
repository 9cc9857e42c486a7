// Sums and maxima over a workgroup through workgroup memory alone, for adapters without subgroups. Every
// lane gets the result; a kernel that reduces twice calls workgroupBarrier() between.

struct Entry {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> reduce_partial: array<vec4<f32>, 256>;

fn reduce_add(value: vec4<f32>, in: Entry) -> vec4<f32> {
    reduce_partial[in.lane] = value;
    workgroupBarrier();
    for (var width = WORKGROUP / 2u; width > 0u; width /= 2u) {
        if in.lane < width {
            reduce_partial[in.lane] += reduce_partial[in.lane + width];
        }
        workgroupBarrier();
    }
    return reduce_partial[0];
}

fn reduce_max(value: f32, in: Entry) -> f32 {
    reduce_partial[in.lane].x = value;
    workgroupBarrier();
    for (var width = WORKGROUP / 2u; width > 0u; width /= 2u) {
        if in.lane < width {
            reduce_partial[in.lane].x = max(reduce_partial[in.lane].x, reduce_partial[in.lane + width].x);
        }
        workgroupBarrier();
    }
    return reduce_partial[0].x;
}
