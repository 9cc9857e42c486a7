//! Dot products in sixteen f32 lanes. The instruction set is chosen once; the order of the sums is the same
//! for every number of rows, but differs between machines with and without FMA.

use std::sync::OnceLock;

use crate::quant::Encoding;
use crate::quant::gguf::Planes;

/// Lanes a sum is kept in: two AVX2 registers, so that four rows fit into eight.
const LANES: usize = 16;

/// Dot products on this machine.
#[derive(Clone, Copy)]
pub(crate) struct Dot {
    one: fn(&[f32], &[f32]) -> f32,
    one_bf16: fn(&[u16], &[f32]) -> f32,
    four: fn(&[f32], [&[f32]; 4]) -> [f32; 4],
    axpy: fn(f32, &[f32], &mut [f32]),
    decode: fn(Encoding, &Planes<'_>, &mut [f32]),
}

impl Dot {
    /// The fastest this machine has.
    pub(crate) fn detect() -> Self {
        static DOT: OnceLock<Dot> = OnceLock::new();
        *DOT.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Dot {
                    one: avx2::one,
                    one_bf16: avx2::one_bf16,
                    four: avx2::four,
                    axpy: avx2::axpy,
                    decode: avx2::decode,
                };
            }
            Dot {
                one: |w, x| lanes::<false, _>(w, x, |w| w),
                one_bf16: |w, x| lanes::<false, _>(w, x, widen),
                four: four::<false>,
                axpy: axpy::<false>,
                decode: |encoding, planes, out| encoding.decode(planes, out),
            }
        })
    }

    /// w · x.
    pub(crate) fn one(self, w: &[f32], x: &[f32]) -> f32 {
        (self.one)(w, x)
    }

    /// w · x, w being bfloat16 bits; equal to widening first.
    pub(crate) fn one_bf16(self, w: &[u16], x: &[f32]) -> f32 {
        (self.one_bf16)(w, x)
    }

    /// w · x for four x; each equal to [`Dot::one`].
    pub(crate) fn four(self, w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
        (self.four)(w, x)
    }

    /// The numbers of a row with scales; equal to [`Encoding::decode`].
    pub(crate) fn decode(self, encoding: Encoding, planes: &Planes<'_>, out: &mut [f32]) {
        (self.decode)(encoding, planes, out);
    }

    /// y += a · x.
    pub(crate) fn axpy(self, a: f32, x: &[f32], y: &mut [f32]) {
        (self.axpy)(a, x, y);
    }
}

#[inline(always)]
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
fn accumulate<const FMA: bool>(a: f32, b: f32, sum: f32) -> f32 {
    if FMA { a.mul_add(b, sum) } else { a * b + sum }
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    let mut lanes = lanes;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn lanes<const FMA: bool, T: Copy>(w: &[T], x: &[f32], widen: impl Fn(T) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (w_blocks, x_blocks) = (w.chunks_exact(LANES), x.chunks_exact(LANES));
    let (w_rest, x_rest) = (w_blocks.remainder(), x_blocks.remainder());
    for (w, x) in w_blocks.zip(x_blocks) {
        for lane in 0..LANES {
            sums[lane] = accumulate::<FMA>(widen(w[lane]), x[lane], sums[lane]);
        }
    }
    for ((sum, w), x) in sums.iter_mut().zip(w_rest).zip(x_rest) {
        *sum = accumulate::<FMA>(widen(*w), *x, *sum);
    }
    total(sums)
}

#[inline(always)]
fn four<const FMA: bool>(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
    let mut sums = [[0.0f32; LANES]; 4];
    let len = x.iter().fold(w.len(), |len, x| len.min(x.len()));
    let whole = len / LANES * LANES;
    let blocks = w[..whole].chunks_exact(LANES);
    let [a, b, c, d] = x.map(|x| x[..whole].chunks_exact(LANES));
    for ((((w, a), b), c), d) in blocks.zip(a).zip(b).zip(c).zip(d) {
        for lane in 0..LANES {
            sums[0][lane] = accumulate::<FMA>(w[lane], a[lane], sums[0][lane]);
            sums[1][lane] = accumulate::<FMA>(w[lane], b[lane], sums[1][lane]);
            sums[2][lane] = accumulate::<FMA>(w[lane], c[lane], sums[2][lane]);
            sums[3][lane] = accumulate::<FMA>(w[lane], d[lane], sums[3][lane]);
        }
    }
    for (sums, x) in sums.iter_mut().zip(x) {
        for ((sum, w), x) in sums.iter_mut().zip(&w[whole..len]).zip(&x[whole..len]) {
            *sum = accumulate::<FMA>(*w, *x, *sum);
        }
    }
    sums.map(total)
}

#[inline(always)]
fn axpy<const FMA: bool>(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = accumulate::<FMA>(a, *x, *y);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The same loops, compiled for AVX2 and FMA. Chosen by [`super::Dot::detect`] only.

    use crate::quant::Encoding;
    use crate::quant::gguf::Planes;

    pub(super) fn one(w: &[f32], x: &[f32]) -> f32 {
        #[target_feature(enable = "avx2,fma")]
        fn inner(w: &[f32], x: &[f32]) -> f32 {
            super::lanes::<true, _>(w, x, |w| w)
        }
        // SAFETY: `Dot::detect` hands this out only where the machine has AVX2 and FMA.
        unsafe { inner(w, x) }
    }

    pub(super) fn one_bf16(w: &[u16], x: &[f32]) -> f32 {
        #[target_feature(enable = "avx2,fma")]
        fn inner(w: &[u16], x: &[f32]) -> f32 {
            super::lanes::<true, _>(w, x, super::widen)
        }
        // SAFETY: `Dot::detect` hands this out only where the machine has AVX2 and FMA.
        unsafe { inner(w, x) }
    }

    pub(super) fn four(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
        #[target_feature(enable = "avx2,fma")]
        fn inner(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
            super::four::<true>(w, x)
        }
        // SAFETY: `Dot::detect` hands this out only where the machine has AVX2 and FMA.
        unsafe { inner(w, x) }
    }

    pub(super) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
        #[target_feature(enable = "avx2,fma")]
        fn inner(a: f32, x: &[f32], y: &mut [f32]) {
            super::axpy::<true>(a, x, y);
        }
        // SAFETY: `Dot::detect` hands this out only where the machine has AVX2 and FMA.
        unsafe { inner(a, x, y) }
    }

    pub(super) fn decode(encoding: Encoding, planes: &Planes<'_>, out: &mut [f32]) {
        #[target_feature(enable = "avx2,fma")]
        fn inner(encoding: Encoding, planes: &Planes<'_>, out: &mut [f32]) {
            encoding.decode(planes, out);
        }
        // SAFETY: `Dot::detect` hands this out only where the machine has AVX2 and FMA.
        unsafe { inner(encoding, planes, out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::float::f32_to_bf16;

    fn numbers(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn every_form_gives_the_same_bits_at_every_length() {
        let dot = Dot::detect();
        for len in 0..100 {
            let bits: Vec<u16> = numbers(len, 1).into_iter().map(f32_to_bf16).collect();
            let w: Vec<f32> = bits.iter().map(|&bits| widen(bits)).collect();
            let x: Vec<_> = (2..6).map(|seed| numbers(len, seed)).collect();

            let one: Vec<f32> = x.iter().map(|x| dot.one(&w, x)).collect();
            let four = dot.four(&w, [&x[0], &x[1], &x[2], &x[3]]);
            let exact: f64 = w.iter().zip(&x[0]).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();

            assert_eq!(one, four, "length {len}");
            assert_eq!(one[0].to_bits(), dot.one_bf16(&bits, &x[0]).to_bits(), "length {len}");
            assert!((f64::from(one[0]) - exact).abs() < 1e-5, "length {len}");
        }
    }

    #[test]
    fn r21_large_sums_stay_exact() {
        let dot = Dot::detect();

        assert_eq!(dot.one(&[32.0; 140], &[32.0; 140]), 143_360.0);
    }
}
