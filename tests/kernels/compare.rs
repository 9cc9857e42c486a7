//! Comparing what a device wrote with what the twins wrote: bit for bit where the maths allows, else by
//! the normalised mean square error of each buffer.

use std::ops::Range;

/// The loosest error a case may ask for: 1e-3 of the values' size, beyond which an answer is wrong.
const LOOSEST: f64 = 1e-6;
/// Below this, f32 itself is too coarse: half a unit in the last place of every value is 1e-15.
const TIGHTEST: f64 = 1e-16;

/// How many times the root mean square error allowed a single number may be off, so that one wrong number
/// among thousands shows.
const OUTLIER: f64 = 10.0;

/// How close floats must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// The same bits; any NaN equals any other.
    Exact,
    /// Sum of squared differences over sum of squares.
    Nmse(f64),
}

/// What the bytes of a region are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Ids, flags, stored codes: equal or wrong.
    Bits,
    /// f32 values.
    Floats,
    /// Log-probabilities: differences of large numbers, so their error is absolute.
    LogProbs,
}

/// What a log-probability may be off by: a few units in the last place of a logit near 30.
const LOG_PROB: f32 = 1e-5;

impl Tolerance {
    /// A normalised error that means something.
    pub(crate) fn nmse(value: f64) -> Result<Self, String> {
        if (TIGHTEST..=LOOSEST).contains(&value) {
            return Ok(Tolerance::Nmse(value));
        }
        Err(format!("nmse = {value:e} is absurd: it must lie between {TIGHTEST:e} and {LOOSEST:e}"))
    }
}

/// Compares the regions of one buffer.
pub(crate) fn regions(
    expected: &[u8],
    found: &[u8],
    regions: &[(Range<usize>, Kind)],
    tolerance: Tolerance,
) -> Result<(), String> {
    for (bytes, _) in regions.iter().filter(|(_, kind)| *kind == Kind::Bits) {
        let differing = bytes.clone().find(|&at| expected[at] != found[at]);
        if let Some(at) = differing {
            let word = at / 4 * 4..at / 4 * 4 + 4;
            return Err(format!(
                "word {}: found {:02x?}, expected {:02x?}",
                at / 4,
                &found[word.clone()],
                &expected[word]
            ));
        }
    }
    let pairs_of = |kind| -> Vec<(usize, f32, f32)> {
        let regions = regions.iter().filter(|(_, of)| *of == kind);
        regions
            .flat_map(|(bytes, _)| bytes.clone().step_by(4))
            .map(|at| (at / 4, float(expected, at), float(found, at)))
            .collect()
    };
    for (at, expected, found) in pairs_of(Kind::LogProbs) {
        // Where logits are not finite a shader may assume anything; the flag in the record says so.
        let close = expected.is_nan() || (found - expected).abs() <= LOG_PROB;
        if !close && found.to_bits() != expected.to_bits() {
            return Err(format!("log-probability {at}: found {found}, expected {expected}"));
        }
    }
    let pairs = pairs_of(Kind::Floats);
    match tolerance {
        Tolerance::Exact => exact(&pairs),
        Tolerance::Nmse(limit) => normalised(&pairs, limit),
    }
}

fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn exact(pairs: &[(usize, f32, f32)]) -> Result<(), String> {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    match pairs.iter().find(|(_, expected, found)| !same(*expected, *found)) {
        Some((at, expected, found)) => {
            Err(format!("number {at}: found {found:?}, expected exactly {expected:?}"))
        }
        None => Ok(()),
    }
}

fn normalised(pairs: &[(usize, f32, f32)], limit: f64) -> Result<(), String> {
    let square = |a: f64| a * a;
    let difference = |expected: f32, found: f32| square(f64::from(found) - f64::from(expected));
    for (at, expected, found) in pairs.iter().copied() {
        if !(expected.is_finite() && found.is_finite()) && expected.to_bits() != found.to_bits() {
            return Err(format!("number {at}: found {found}, expected {expected}"));
        }
    }
    let finite = || pairs.iter().copied().filter(|(_, expected, _)| expected.is_finite());
    let size: f64 = finite().map(|(_, expected, _)| square(f64::from(expected))).sum();
    let error: f64 = finite().map(|(_, expected, found)| difference(expected, found)).sum();
    // What the average number may be off by, and what a single one may.
    let average = limit * size / finite().count() as f64;
    let single = square(OUTLIER) * average;
    let beyond = |allowed: f64| {
        finite().find(move |(_, expected, found)| difference(*expected, *found) > allowed)
    };
    let off = if error > limit * size { beyond(average) } else { beyond(single) };
    match off {
        Some((at, expected, found)) => Err(format!(
            "nmse {:.2e} of {limit:.0e}; number {at} is off: found {found}, expected {expected}",
            error / size
        )),
        None => Ok(()),
    }
}

/// What the comparison itself must catch.
pub(crate) fn self_test() -> Result<(), String> {
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let compare = |expected: &[f32], found: &[f32], tolerance| {
        let all = [(0..expected.len() * 4, Kind::Floats)];
        regions(&bytes(expected), &bytes(found), &all, tolerance)
    };
    let tight = Tolerance::nmse(1e-10)?;
    let checks = [
        ("an nmse of 1e-3 is refused", Tolerance::nmse(1e-3).is_err()),
        ("an nmse of 0 is refused", Tolerance::nmse(0.0).is_err()),
        ("an nmse that is no number is refused", Tolerance::nmse(f64::NAN).is_err()),
        ("one unit in the last place is not exact", {
            compare(&[1.0], &[1.0 + f32::EPSILON], Tolerance::Exact).is_err()
        }),
        ("one unit in the last place is close", {
            compare(&[1.0], &[1.0 + f32::EPSILON], tight).is_ok()
        }),
        ("an error of 1e-4 is not close", compare(&[1.0, 2.0], &[1.0, 2.0002], tight).is_err()),
        ("one wrong number among thousands is not close", {
            let mut found = vec![1.0f32; 5000];
            found[7] = 1.0002;
            compare(&[1.0; 5000], &found, tight).is_err_and(|text| text.contains("number 7 "))
        }),
        ("a NaN is never close", compare(&[1.0], &[f32::NAN], tight).is_err()),
        ("an infinity is never close", compare(&[1e30], &[f32::INFINITY], tight).is_err()),
        ("anything but zero is far from zeros", compare(&[0.0], &[1e-20], tight).is_err()),
        ("the first index is named", {
            compare(&[1.0, 2.0], &[1.0, 3.0], tight).is_err_and(|text| text.contains("number 1 "))
        }),
    ];
    match checks.iter().find(|(_, holds)| !holds) {
        Some((what, _)) => Err(format!("not so: {what}")),
        None => Ok(()),
    }
}
