//! What must come out whatever the twins say: field reports with known answers, and results that may not
//! depend on how a matrix is cut. Run on every device and on the reference itself.

use std::sync::Arc;

use libtest_mimic::Trial;
use thintensor::backend::Backend;
use thintensor::program::BufferName;

use crate::case::Case;
use crate::{Device, ops};

type Fact = fn(&dyn Backend) -> Result<(), String>;

const FACTS: &[(&str, Fact)] = &[
    ("r21_sums_beyond_the_largest_f16_are_exact", large_sums),
    ("r21_large_sums_cancel_to_zero", cancelling_sums),
    ("r22_large_values_survive_attention", large_values),
    ("r27_a_window_sees_exactly_its_positions", window),
    ("parts_and_runs_change_no_bit", parts),
    ("greedy_takes_the_lowest_of_equal_logits", greedy_ties),
];

pub(crate) fn trials(name: &str, device: &Device) -> Vec<Trial> {
    FACTS
        .iter()
        .map(|&(fact, check)| {
            let device = Arc::clone(device);
            Trial::test(format!("{name}::facts::{fact}"), move || Ok(check(&*device)?))
        })
        .collect()
}

/// Rows of the step at which a device may change its kernel, and one above and below.
const ROWS: [u32; 12] = [1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 129, 257];

fn floats(
    device: &dyn Backend,
    kernel: &str,
    case: &str,
    buffer: BufferName,
) -> Result<Vec<f32>, String> {
    let contents = ops::build(kernel, &Case::of(case)).run(device)?;
    Ok(contents[&buffer]
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect())
}

fn all_equal(found: &[f32], expected: f32, tolerance: f32) -> Result<(), String> {
    match found.iter().position(|found| (found - expected).abs() > tolerance) {
        Some(at) => Err(format!("number {at} is {}, not {expected}", found[at])),
        None => Ok(()),
    }
}

/// 140 · 32 · 32 = 143,360, above the 65,504 that f16 ends at.
fn large_sums(device: &dyn Backend) -> Result<(), String> {
    for rows in ROWS {
        let case = format!("rows = {rows}\nn = 3\nk = 140\nformat = \"f16\"\nvalues = \"32\"");
        all_equal(&floats(device, "matmul", &case, BufferName::Projected)?, 143_360.0, 0.0)?;
    }
    Ok(())
}

fn cancelling_sums(device: &dyn Backend) -> Result<(), String> {
    for rows in ROWS {
        let case =
            format!("rows = {rows}\nn = 3\nk = 140\nformat = \"f16\"\nvalues = \"cancelling\"");
        all_equal(&floats(device, "matmul", &case, BufferName::Projected)?, 0.0, 0.0)?;
    }
    Ok(())
}

/// Eight equal keys and values of 60,000: the mean is 60,000, an unnormalised sum in f16 is infinite.
fn large_values(device: &dyn Backend) -> Result<(), String> {
    for kv in ["f32", "f16"] {
        let case = format!(
            "rows = 1\nkv = \"{kv}\"\nkv_heads = 1\nhead_dim = 64\nratio = 1\nkv_len = 8\n\
             equal_keys = true\nvalue = 60000.0"
        );
        all_equal(&floats(device, "attention", &case, BufferName::Attended)?, 60_000.0, 0.05)?;
    }
    Ok(())
}

/// Equal keys, and values that are their positions: a row's result is the mean of the positions it sees.
/// With a window of 4 they are 0; 0, 1; 0, 1, 2; and from then on the last four.
fn window(device: &dyn Backend) -> Result<(), String> {
    let case = "rows = 8\nkv_heads = 1\nhead_dim = 24\nratio = 1\nkv_len = 1\nshared = true\n\
                equal_keys = true\nwindow = 4";
    let found = floats(device, "attention", case, BufferName::Attended)?;
    for (row, mean) in [0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.5, 5.5].into_iter().enumerate() {
        all_equal(&found[row * 24..(row + 1) * 24], mean, 1e-5)
            .map_err(|error| format!("row {row}: {error}"))?;
    }
    Ok(())
}

/// A matrix in one part, in several parts, and in several buffers.
fn parts(device: &dyn Backend) -> Result<(), String> {
    for rows in [1, 7] {
        for format in ["f32", "f16", "bf16"] {
            let matmul = format!("rows = {rows}\nn = 257\nk = 96\nformat = \"{format}\"");
            let embed =
                format!("rows = {rows}\nvocab = 257\nhidden = 96\nformat = \"{format}\"\nseed = 9");
            for (kernel, case, out) in [
                ("matmul", &matmul, BufferName::Projected),
                ("embed", &embed, BufferName::Residual),
            ] {
                let whole = floats(device, kernel, case, out)?;
                for cut in ["part_rows = 64", "part_rows = 32\nruns = 3", "part_rows = 1\nruns = 2"]
                {
                    let found = floats(device, kernel, &format!("{case}\n{cut}"), out)?;
                    if found != whole {
                        return Err(format!("{kernel} with {cut} differs: {case}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rounded logits have many equal ones.
fn greedy_ties(device: &dyn Backend) -> Result<(), String> {
    let case = "rows = 5\nvocab = 257\nties = true";
    let one_op = ops::build("sample", &Case::of(case));
    let contents = one_op.run(device)?;
    let logits: &[u8] = &one_op.contents[&BufferName::Logits];
    for (row, step) in one_op.step.iter().enumerate() {
        let row: Vec<f32> = logits[row * 257 * 4..(row + 1) * 257 * 4]
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let lowest = row.iter().position(|&logit| logit == largest).expect("it is in there") as u32;
        let drawn = &contents[&BufferName::Drawn][step.sampler_slot as usize * 4..][..4];
        let drawn = u32::from_le_bytes([drawn[0], drawn[1], drawn[2], drawn[3]]);
        if drawn != lowest {
            return Err(format!("drew {drawn}, but {lowest} is the first of the largest logits"));
        }
    }
    Ok(())
}
