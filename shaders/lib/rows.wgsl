// Which step row is behind a row of data. Rows of data are either the step's own (`packed_rows` 0) or its
// emitting rows packed together; the kernel that imports this declares the table `step`.

const NO_ROW: u32 = 0xffffffffu;

fn step_row(index: u32, packed_rows: u32) -> u32 {
    if packed_rows == 0u {
        return select(NO_ROW, index, is_active(step[index]));
    }
    var left = index;
    for (var row = 0u; row < packed_rows; row++) {
        if emits(step[row]) {
            if left == 0u {
                return row;
            }
            left -= 1u;
        }
    }
    return NO_ROW;
}
