//! Twin of `sample`: one id from one row of logits.
//!
//! Order: bias and mask, penalties, temperature, top-k, top-p, min-p, one draw. Probabilities in f64.

use crate::program::SamplerRecord;

/// What a row drew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draw {
    /// The token.
    pub(crate) id: u32,
    /// Its log-probability under the logits as they came.
    pub(crate) logprob: f32,
    /// Whether every logit was finite.
    pub(crate) finite: bool,
}

/// What a draw depends on beside the logits.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The slot's settings.
    pub(crate) settings: &'a SamplerRecord,
    /// One bit per token that may be drawn; none allows all.
    pub(crate) mask: Option<&'a [u32]>,
    /// Added to single logits.
    pub(crate) bias: &'a [(u32, f32)],
    /// The last `repeat_last_n` tokens of the sequence.
    pub(crate) recent: &'a [u32],
    /// Position of the row; with the seed it keys the draw.
    pub(crate) position: u32,
}

/// Draws one id from `[vocab]` logits.
pub(crate) fn sample(logits: &[f32], context: &Context<'_>) -> Draw {
    let finite = super::check_finite::check_finite(logits);
    let adjusted = adjust(logits, context);
    let id = if context.settings.temperature > 0.0 {
        draw(&adjusted, context)
    } else {
        largest(&adjusted)
    };
    Draw { id, logprob: logprob(logits, id), finite }
}

/// Logits after bias, mask and penalties; what cannot be drawn is minus infinity.
fn adjust(logits: &[f32], context: &Context<'_>) -> Vec<f64> {
    let settings = context.settings;
    let mut adjusted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for &(id, bias) in context.bias {
        if let Some(logit) = adjusted.get_mut(id as usize) {
            *logit += f64::from(bias);
        }
    }
    let mut counts = std::collections::BTreeMap::new();
    for &token in context.recent {
        *counts.entry(token).or_insert(0u32) += 1;
    }
    for (token, count) in counts {
        let Some(logit) = adjusted.get_mut(token as usize) else { continue };
        let penalty = f64::from(settings.repetition_penalty);
        *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        *logit -= f64::from(settings.presence_penalty);
        *logit -= f64::from(settings.frequency_penalty) * f64::from(count);
    }
    for (id, logit) in adjusted.iter_mut().enumerate() {
        let allowed = context
            .mask
            .is_none_or(|mask| mask.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1));
        if !allowed || logit.is_nan() {
            *logit = f64::NEG_INFINITY;
        }
    }
    adjusted
}

/// The id of the largest logit; the lowest where several are equal.
fn largest(logits: &[f64]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Temperature, top-k, top-p, min-p, then the inverse CDF in id order.
fn draw(logits: &[f64], context: &Context<'_>) -> u32 {
    let settings = context.settings;
    let best = logits[largest(logits) as usize];
    if best.is_infinite() {
        return largest(logits);
    }
    let temperature = f64::from(settings.temperature);
    let weight = |id: u32| ((logits[id as usize] - best) / temperature).exp();
    let mut kept: Vec<(u32, f64)> = (0..logits.len() as u32)
        .map(|id| (id, weight(id)))
        .filter(|(_, weight)| *weight > 0.0)
        .collect();
    let top_k = settings.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        keep_first(&mut kept, top_k);
    }
    if settings.top_p < 1.0 {
        keep_mass(&mut kept, f64::from(settings.top_p));
    }
    // The largest weight is 1, so min-p is a bound on the weights themselves.
    let min_p = f64::from(settings.min_p);
    kept.retain(|(_, weight)| *weight >= min_p || *weight == 1.0);
    kept.sort_unstable_by_key(|(id, _)| *id);

    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    let target = uniform(settings, context.position) * total;
    let mut sum = 0.0;
    for (id, weight) in &kept {
        sum += weight;
        if sum > target {
            return *id;
        }
    }
    kept.last().map_or_else(|| largest(logits), |(id, _)| *id)
}

/// Larger weights first, lower ids first among equals.
fn order(a: &(u32, f64), b: &(u32, f64)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the `n` first in [`order`], sorted.
fn keep_first(kept: &mut Vec<(u32, f64)>, n: usize) {
    if n < kept.len() {
        kept.select_nth_unstable_by(n, order);
        kept.truncate(n);
    }
    kept.sort_unstable_by(order);
}

/// Keeps the shortest run of largest weights whose sum reaches `mass` of the whole.
fn keep_mass(kept: &mut Vec<(u32, f64)>, mass: f64) {
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    // Sorting a whole vocabulary costs as much as a small layer; mostly a few hundred ids are enough.
    let mut n = 256;
    loop {
        let mut sorted = kept.clone();
        keep_first(&mut sorted, n);
        let mut sum = 0.0;
        let reached = sorted.iter().position(|(_, weight)| {
            sum += weight;
            sum >= mass * total
        });
        if reached.is_some() || n >= kept.len() {
            sorted.truncate(reached.map_or(sorted.len(), |last| last + 1));
            *kept = sorted;
            return;
        }
        n *= 8;
    }
}

/// Natural logarithm of the softmax of `logits` at `id`.
fn logprob(logits: &[f32], id: u32) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    let own = logits.get(id as usize).copied().unwrap_or(f32::NAN);
    (f64::from(own) - f64::from(max) - sum.ln()) as f32
}

/// One number in [0, 1) with 24 bits, keyed by the seed and the position.
fn uniform(settings: &SamplerRecord, position: u32) -> f64 {
    let [word, ..] = philox([position, 0, 0, 0], [settings.seed_low, settings.seed_high]);
    f64::from(word >> 8) / f64::from(1u32 << 24)
}

/// Philox4x32-10 (Salmon et al. 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [a, b, c, d] = counter;
        let first = u64::from(a) * 0xD251_1F53;
        let second = u64::from(c) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ b ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ d ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> SamplerRecord {
        SamplerRecord { temperature: 1.0, seed_low: 42, ..SamplerRecord::default() }
    }

    fn draw_at(logits: &[f32], settings: &SamplerRecord, position: u32) -> u32 {
        let context = Context { settings, mask: None, bias: &[], recent: &[], position };
        sample(logits, &context).id
    }

    /// Share of each id over many positions.
    fn shares(logits: &[f32], settings: &SamplerRecord) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for position in 0..4000 {
            counts[draw_at(logits, settings, position) as usize] += 1.0 / 4000.0;
        }
        counts
    }

    #[test]
    fn philox_matches_the_published_test_vectors() {
        // From the known-answer file of the Random123 distribution.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn temperature_zero_takes_the_largest_and_the_lowest_id_of_equals() {
        let greedy = SamplerRecord::default();

        assert_eq!(draw_at(&[1.0, 3.0, 3.0, 2.0], &greedy, 0), 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        // Probabilities 1/8, 2/8, 5/8.
        let logits = [1.0f32.ln(), 2.0f32.ln(), 5.0f32.ln()];

        for (found, expected) in shares(&logits, &settings()).iter().zip([0.125, 0.25, 0.625]) {
            // Three standard deviations of 4,000 draws.
            assert!((found - expected).abs() < 0.024, "{found} is not {expected}");
        }
    }

    #[test]
    fn the_same_seed_and_position_draw_the_same_id() {
        let logits = [0.0; 50];

        let first: Vec<_> = (0..20).map(|at| draw_at(&logits, &settings(), at)).collect();
        let again: Vec<_> = (0..20).map(|at| draw_at(&logits, &settings(), at)).collect();
        let other = SamplerRecord { seed_low: 43, ..settings() };
        let others: Vec<_> = (0..20).map(|at| draw_at(&logits, &other, at)).collect();

        assert_eq!(first, again);
        assert_ne!(first, others);
    }

    #[test]
    fn top_k_top_p_and_min_p_leave_out_the_tail() {
        let logits = [1.0f32.ln(), 2.0f32.ln(), 5.0f32.ln(), 2.0f32.ln()];
        let none_of = |settings: SamplerRecord, ids: &[usize]| {
            let shares = shares(&logits, &settings);
            ids.iter().all(|&id| shares[id] == 0.0) && shares[2] > 0.0
        };

        // Of the equal ids 1 and 3 the lower one is kept.
        assert!(none_of(SamplerRecord { top_k: 2, ..settings() }, &[0, 3]));
        assert!(none_of(SamplerRecord { top_p: 0.5, ..settings() }, &[0, 1, 3]));
        assert!(none_of(SamplerRecord { min_p: 0.3, ..settings() }, &[0]));
        // 0.5 alone misses 0.6, so the lower of the two next ones joins; 0.8 needs both.
        assert!(none_of(SamplerRecord { top_p: 0.6, ..settings() }, &[0, 3]));
        assert!(shares(&logits, &SamplerRecord { top_p: 0.6, ..settings() })[1] > 0.0);
        assert!(shares(&logits, &SamplerRecord { top_p: 0.8, ..settings() })[3] > 0.0);
    }

    #[test]
    fn top_p_over_more_ids_than_are_sorted_first_keeps_the_right_number() {
        // 4,000 equal ids: 0.9 of the mass is 3,600 of them, the lowest.
        let mut kept: Vec<_> = (0..4000u32).map(|id| (id, 1.0)).collect();

        keep_mass(&mut kept, 0.9);

        assert_eq!(kept.len(), 3600);
        assert_eq!(kept.last(), Some(&(3599, 1.0)));
    }

    #[test]
    fn mask_bias_and_penalties_come_before_the_choice() {
        let greedy = SamplerRecord {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplerRecord::default()
        };
        let context =
            |mask, bias, recent| Context { settings: &greedy, mask, bias, recent, position: 0 };
        let logits = [4.0, 3.0, -1.0, 2.0];

        assert_eq!(sample(&logits, &context(Some(&[0b1010]), &[], &[])).id, 1);
        assert_eq!(sample(&logits, &context(None, &[(3, 2.5)], &[])).id, 3);
        // 4 / 2 - 0.5 - 2 * 0.25 = 1 < 3.
        assert_eq!(sample(&logits, &context(None, &[], &[0, 0])).id, 1);
        // A negative logit is pushed down, not up: -1 * 2 - 0.75.
        assert_eq!(adjust(&logits, &context(None, &[], &[2]))[2], -2.75);
    }

    #[test]
    fn a_logit_that_is_not_finite_is_reported_and_never_drawn() {
        let context =
            Context { settings: &settings(), mask: None, bias: &[], recent: &[], position: 0 };

        let draw = sample(&[f32::NAN, 1.0], &context);

        assert!(!draw.finite);
        assert_eq!(draw.id, 1);
    }

    #[test]
    fn logprob_is_that_of_the_models_own_logits() {
        let draw = logprob(&[0.0, 3.0f32.ln()], 1);

        assert!((draw - 0.75f32.ln()).abs() < 1e-6);
    }
}
