//! Twin of `select_rows`: packs the rows that get logits.

use crate::program::StepRow;

/// Indices of the emitting rows of a step, in order.
pub(crate) fn select_rows(step: &[StepRow]) -> Vec<usize> {
    (0..step.len()).filter(|&row| step[row].emits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_active_rows_that_emit_are_selected() {
        let flags = [0, StepRow::ACTIVE, StepRow::ACTIVE | StepRow::EMIT, StepRow::EMIT];
        let step = flags.map(|flags| StepRow { flags, ..StepRow::default() });

        assert_eq!(select_rows(&step), [2]);
    }
}
