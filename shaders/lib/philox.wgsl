// Philox4x32-10 (Salmon et al. 2011): four random words keyed by two.

fn multiply_high(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let cross = a_low * b_high + ((a_low * b_low) >> 16u);
    let other = a_high * b_low + (cross & 0xffffu);
    return a_high * b_high + (cross >> 16u) + (other >> 16u);
}

fn philox(start: vec4<u32>, first_key: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = first_key;
    for (var round = 0u; round < 10u; round++) {
        let first = 0xD2511F53u;
        let second = 0xCD9E8D57u;
        counter = vec4(
            multiply_high(second, counter.z) ^ counter.y ^ key.x,
            second * counter.z,
            multiply_high(first, counter.x) ^ counter.w ^ key.y,
            first * counter.x,
        );
        key += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}
