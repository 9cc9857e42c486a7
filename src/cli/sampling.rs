//! How ids are drawn: flags first, then the model's generation_config.json, then 0.8 and 0.95.

use std::hash::{BuildHasher, Hasher, RandomState};

use thintensor::generate::Options;
use thintensor::sample::Sampling;
use thintensor::tokenizer::GenerationDefaults;

use super::args::SamplingArgs;
use super::error::Error;
use super::report;

impl SamplingArgs {
    /// Refuses numbers out of range before a model is loaded.
    ///
    /// **Errors**: the setting and its limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let sampling = self.settings(&GenerationDefaults::default());
        sampling.record(false).map_err(thintensor::Error::from)?;
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::usage(
                "--stop was given an empty text",
                "give a text that ends the reply",
            ));
        }
        Ok(())
    }

    /// The options of a reply; a seed is drawn where one is needed and none was given, and shown.
    ///
    /// `max_new_tokens` of a generation_config.json is not followed: a limit nobody asked for cuts replies.
    pub(crate) fn options(&self, defaults: &GenerationDefaults) -> Options {
        let mut sampling = self.settings(defaults);
        if sampling.temperature > 0.0 {
            sampling.seed = self.seed.unwrap_or_else(|| {
                let seed = drawn_seed();
                report::say(&format!("seed: {seed}"));
                seed
            });
        } else if self.temp.is_none() && self.shapes_draws() {
            report::warn(
                "generation_config.json asks for the most likely token every time, so that the other \
                 sampling flags have no effect; give --temp to sample",
            );
        }
        Options {
            sampling,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            style: None,
        }
    }

    /// Whether a flag says how to draw, not only how much.
    fn shapes_draws(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.seed.is_some()
    }

    fn settings(&self, defaults: &GenerationDefaults) -> Sampling {
        let usual = Sampling::default();
        let number = |value: Option<f64>| value.map(|value| value as f32);
        // A model that says how to sample, but not all of it, means the neutral values for the rest.
        let says = defaults.do_sample == Some(true)
            || defaults.temperature.is_some()
            || defaults.top_p.is_some()
            || defaults.top_k.is_some()
            || defaults.min_p.is_some();
        let (temperature, top_p) = match (defaults.greedy(), says) {
            (true, _) => (0.0, 1.0),
            (false, true) => {
                (number(defaults.temperature).unwrap_or(1.0), number(defaults.top_p).unwrap_or(1.0))
            }
            (false, false) => (usual.temperature, usual.top_p),
        };
        let top_k = defaults.top_k.filter(|_| !defaults.greedy()).unwrap_or(0);
        Sampling {
            temperature: self.temp.unwrap_or(temperature),
            top_k: self.top_k.unwrap_or(u32::try_from(top_k).unwrap_or(0)),
            top_p: self.top_p.unwrap_or(top_p),
            min_p: self.min_p.or(number(defaults.min_p)).unwrap_or(usual.min_p),
            repetition_penalty: self
                .repeat_penalty
                .or(number(defaults.repetition_penalty))
                .unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(usual.repeat_last_n),
            seed: self.seed.unwrap_or(0),
        }
    }
}

/// A seed nobody chose, short enough to be typed again: the keys of a hash map are random.
fn drawn_seed() -> u64 {
    RandomState::new().build_hasher().finish() & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SamplingArgs {
        SamplingArgs {
            max_tokens: None,
            temp: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repeat_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            repeat_last_n: None,
            seed: Some(1),
            stop: Vec::new(),
            ignore_eos: false,
        }
    }

    #[test]
    fn without_a_generation_config_replies_are_sampled_mildly() {
        let sampling = args().settings(&GenerationDefaults::default());

        assert_eq!((sampling.temperature, sampling.top_p), (0.8, 0.95));
    }

    #[test]
    fn a_generation_config_is_followed_and_flags_win() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            ..GenerationDefaults::default()
        };

        let followed = args().settings(&defaults);
        let overruled = SamplingArgs { temp: Some(0.0), ..args() }.settings(&defaults);

        assert_eq!((followed.temperature, followed.top_k, followed.top_p), (0.6, 20, 1.0));
        assert_eq!(overruled.temperature, 0.0);
    }

    #[test]
    fn do_sample_false_is_greedy_unless_a_temperature_is_asked_for() {
        let defaults = GenerationDefaults {
            do_sample: Some(false),
            temperature: Some(0.6),
            ..GenerationDefaults::default()
        };

        assert_eq!(args().settings(&defaults).temperature, 0.0);
        assert_eq!(SamplingArgs { temp: Some(0.5), ..args() }.settings(&defaults).temperature, 0.5);
    }

    #[test]
    fn r94_max_new_tokens_of_a_generation_config_does_not_cut_replies() {
        let defaults =
            GenerationDefaults { max_new_tokens: Some(20), ..GenerationDefaults::default() };

        assert_eq!(args().options(&defaults).max_tokens, None);
    }

    #[test]
    fn a_temperature_below_zero_is_a_usage_error() {
        let error = SamplingArgs { temp: Some(-1.0), ..args() }.check().expect_err("refused");

        assert_eq!(error.exit().code(), 2);
    }
}
