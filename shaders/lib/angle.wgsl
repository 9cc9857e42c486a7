// Cosine and sine of a large angle. A GPU's own cos may lose everything beyond a few turns, so the angle is
// reduced to [-pi, pi] first, with 2 pi split in three (Cody and Waite 1980): exact enough below 2^20 turns.

fn cos_sin(angle: f32) -> vec2<f32> {
    let turns = round(angle * 0.15915494309189535);
    // 2 pi = 6.28125 + 0.0019350051879882812 + 3.0199159819568529e-07; the first two have few bits.
    var rest = fma(-turns, 6.28125, angle);
    rest = fma(-turns, 0.0019350051879882812, rest);
    rest = fma(-turns, 3.0199159819568529e-07, rest);
    return vec2(cos(rest), sin(rest));
}
