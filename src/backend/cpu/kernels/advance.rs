//! Twin of `advance`: the next step of a row that has just drawn an id.

use crate::program::{IdRecord, SamplerRecord, StepRow};

/// The row's next step. A row that drew an end token becomes inactive, unless its sampler ignores those;
/// its position stays, so that the host can go on from there.
pub(crate) fn advance(row: &mut StepRow, drawn: &IdRecord, sampler: &SamplerRecord) {
    if drawn.is_end() && sampler.flags & SamplerRecord::IGNORE_END == 0 {
        row.flags &= !StepRow::ACTIVE;
        return;
    }
    row.token = StepRow::FROM_SLOT | row.sampler_slot;
    row.position += 1;
    row.kv_len += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> StepRow {
        let flags = StepRow::ACTIVE | StepRow::EMIT;
        StepRow { token: 7, position: 4, kv_len: 5, sampler_slot: 2, flags, ..StepRow::default() }
    }

    #[test]
    fn a_row_moves_on_and_reads_the_id_of_its_slot() {
        let mut row = row();

        advance(&mut row, &IdRecord::default(), &SamplerRecord::default());

        assert_eq!((row.position, row.kv_len), (5, 6));
        assert_eq!(row.token, StepRow::FROM_SLOT | 2);
        assert!(row.is_active());
    }

    #[test]
    fn a_row_that_drew_an_end_token_stops_unless_told_to_ignore_it() {
        let end = IdRecord { flags: IdRecord::END, ..IdRecord::default() };
        let (mut stopped, mut ignoring) = (row(), row());
        let flags = SamplerRecord::IGNORE_END;

        advance(&mut stopped, &end, &SamplerRecord::default());
        advance(&mut ignoring, &end, &SamplerRecord { flags, ..SamplerRecord::default() });

        assert!(!stopped.is_active());
        assert_eq!(stopped.position, 4);
        assert!(ignoring.is_active());
        assert_eq!(ignoring.position, 5);
    }
}
