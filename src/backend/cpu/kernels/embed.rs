//! Twin of `embed`: one row of the table.

use crate::backend::cpu::matrix::Matrix;

/// out = table[token], `[hidden]`; a token beyond the table takes its last row.
pub(crate) fn embed(table: &Matrix<'_>, token: u32, out: &mut [f32]) {
    table.row(token.min(table.rows().saturating_sub(1)), out);
}
