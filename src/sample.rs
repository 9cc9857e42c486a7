//! How a user says ids are drawn, and the record the device works from. The drawing itself is an op:
//! `backend/cpu/kernels/sample.rs` is its specification.

use crate::program::SamplerRecord;

/// Sampler settings in the field's usual terms.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Sampling {
    /// 0 takes the most likely token every time.
    pub temperature: f32,
    /// Tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Probability mass kept; 1 keeps all.
    pub top_p: f32,
    /// Smallest probability kept, as a fraction of the largest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 leaves them.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from logits of recent tokens per occurrence.
    pub frequency_penalty: f32,
    /// How many tokens are recent, the prompt's included.
    pub repeat_last_n: u32,
    /// Keys the draws: the same seed draws the same ids from the same logits.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.8,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

/// A setting that no sampler can follow.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{name} is {value}, but must lie between {min} and {max}")]
pub struct Error {
    /// The setting.
    pub name: &'static str,
    /// What was asked for.
    pub value: f32,
    /// Smallest possible.
    pub min: f32,
    /// Largest possible.
    pub max: f32,
}

impl Sampling {
    /// The device's record.
    ///
    /// **Errors**: [`Error`] naming the setting that is out of range or not a number.
    pub fn record(&self, ignore_end: bool) -> Result<SamplerRecord, Error> {
        let bounded = |name, value: f32, min: f32, max: f32| {
            if value >= min && value <= max {
                return Ok(value);
            }
            Err(Error { name, value, min, max })
        };
        Ok(SamplerRecord {
            temperature: bounded("temperature", self.temperature, 0.0, 100.0)?,
            top_k: self.top_k,
            top_p: bounded("top-p", self.top_p, 0.0, 1.0)?,
            min_p: bounded("min-p", self.min_p, 0.0, 1.0)?,
            repetition_penalty: bounded("repeat penalty", self.repetition_penalty, 0.01, 100.0)?,
            presence_penalty: bounded("presence penalty", self.presence_penalty, -100.0, 100.0)?,
            frequency_penalty: bounded("frequency penalty", self.frequency_penalty, -100.0, 100.0)?,
            repeat_last_n: self.repeat_last_n,
            seed_low: self.seed as u32,
            seed_high: (self.seed >> 32) as u32,
            flags: if ignore_end { SamplerRecord::IGNORE_END } else { 0 },
            ..SamplerRecord::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let bad = Sampling { top_p: 1.5, ..Sampling::default() };
        let nan = Sampling { temperature: f32::NAN, ..Sampling::default() };

        assert_eq!(bad.record(false).map_err(|error| error.name), Err("top-p"));
        assert_eq!(nan.record(false).map_err(|error| error.name), Err("temperature"));
    }

    #[test]
    fn the_seed_keeps_all_its_bits() {
        let record = Sampling { seed: 0x1234_5678_9abc_def0, ..Sampling::default() }.record(false);

        let record = record.expect("in range");
        assert_eq!((record.seed_low, record.seed_high), (0x9abc_def0, 0x1234_5678));
    }
}
