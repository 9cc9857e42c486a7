//! Rotary frequencies: one f32 per rotated pair, and the factor on cosine and sine.
//!
//! Computed in f32 in the order the reference library uses, so that tables agree to the last bit or two.

use super::{RopeScaling, RopeSpec};

/// The table a rotary description stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Angle per position of each pair, `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor on both cosine and sine; 1 unless YaRN.
    pub attention_factor: f32,
}

impl RopeTable {
    /// The frequencies of `spec`.
    #[must_use]
    pub fn new(spec: &RopeSpec) -> Self {
        let dim = f64::from(spec.rotary_dim);
        let base: Vec<f64> = (0..spec.rotary_dim / 2)
            .map(|pair| spec.rope_theta.powf(-2.0 * f64::from(pair) / dim))
            .collect();
        let (inv_freq, attention_factor) = match &spec.scaling {
            RopeScaling::Default => (base, 1.0),
            RopeScaling::Linear { factor } => {
                (base.iter().map(|freq| freq / factor).collect(), 1.0)
            }
            RopeScaling::Factors { factors } => {
                let divided =
                    base.iter().zip(factors).map(|(freq, factor)| freq / f64::from(*factor));
                (divided.collect(), 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let original = f64::from(*original_max_position_embeddings);
                let stretch = |freq: &f64| {
                    llama3(*freq, *factor, *low_freq_factor, *high_freq_factor, original)
                };
                (base.iter().map(stretch).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor,
            } => {
                let original = f64::from(*original_max_position_embeddings);
                let rotations = |count: f64| {
                    dim * (original / (count * std::f64::consts::TAU)).ln()
                        / (2.0 * spec.rope_theta.ln())
                };
                let (mut low, mut high) = (rotations(*beta_fast), rotations(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001; // the reference's guard against a ramp of no width
                }
                let stretched = base.iter().enumerate().map(|(pair, freq)| {
                    let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    freq / factor * ramp + freq * (1.0 - ramp)
                });
                (stretched.collect(), *attention_factor)
            }
        };
        RopeTable {
            inv_freq: inv_freq.iter().map(|&freq| freq as f32).collect(),
            attention_factor: attention_factor as f32,
        }
    }
}

/// YaRN's factor on cosine and sine when a config states none: 0.1 ln(factor) + 1, or the ratio of two
/// such terms where both `mscale` and `mscale_all_dim` are given.
#[must_use]
pub fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let term = |mscale: f64| {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    };
    match (mscale, mscale_all_dim) {
        (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => term(mscale) / term(all),
        _ => term(1.0),
    }
}

/// Llama 3's stretch of one frequency.
fn llama3(freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / freq;
    if wavelength > original / low {
        freq / factor
    } else if wavelength < original / high {
        freq
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rotary_dim: u32, rope_theta: f64, scaling: RopeScaling) -> RopeTable {
        RopeTable::new(&RopeSpec { rotary_dim, rope_theta, scaling })
    }

    fn assert_close(found: f32, expected: f32) {
        assert!((found - expected).abs() <= expected.abs() * 5e-6, "{found} is not {expected}");
    }

    #[test]
    fn r25_yarn_frequencies_and_factor_match_the_published_formula() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: yarn_attention_factor(4.0, None, None),
        };
        let found = table(16, 10_000.0, yarn);

        let expected =
            [1.0, 0.316_227_8, 0.1, 0.025_693_5, 0.006_25, 0.001_383_50, 0.000_25, 7.905_69e-5];
        for (found, expected) in found.inv_freq.iter().zip(expected) {
            assert_close(*found, expected);
        }
        assert_close(found.attention_factor, 1.138_629_4);
        assert_close(yarn_attention_factor(32.0, None, None) as f32, 1.346_573_6);
        assert_close(yarn_attention_factor(40.0, Some(1.0), Some(1.0)) as f32, 1.0);
    }

    #[test]
    fn r26_llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let found = table(128, 500_000.0, llama3).inv_freq;

        for (index, expected) in [
            (28, 0.003_211_446),
            (29, 0.002_166_57),
            (32, 0.000_524_846),
            (36, 7.784_66e-5),
            (63, 3.068_93e-7),
        ] {
            assert!(
                (found[index] - expected).abs() <= expected * 1e-5,
                "{index}: {}",
                found[index]
            );
        }
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = table(8, 10_000.0, RopeScaling::Default).inv_freq;
        let stretched = table(8, 10_000.0, RopeScaling::Linear { factor: 4.0 }).inv_freq;

        for (plain, stretched) in plain.iter().zip(stretched) {
            assert_eq!(plain / 4.0, stretched);
        }
    }
}
