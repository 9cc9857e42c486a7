// Where a row of a matrix group starts, counted in 16-byte words: `format::geometry` in WGSL. Parts before
// `first_part` lie in another binding.

struct Weight {
    rows: u32,        // rows in this binding
    first_row: u32,   // of them, the first's number in the group
    words: u32,       // 16-byte words of a row that hold numbers
    row_stride: u32,  // words from row to row
    part_stride: u32, // words from part to part
    shift: u32,       // log2 of the rows of a part
    pad_a: u32,       // uniform structs are multiples of 16 bytes
    pad_b: u32,
}

fn row_start(weight: Weight, row: u32) -> u32 {
    let within = row & ((1u << weight.shift) - 1u);
    return (row >> weight.shift) * weight.part_stride + within * weight.row_stride;
}
