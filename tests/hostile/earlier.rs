//! What the program that wrote version 0 did with hostile archives, and which test says what happens now.

use crate::case::Case;

/// The lie, what the earlier program did, the test for version 0, and the one for version 1 in
/// `tests/format`, where such a lie can be told there.
const ROWS: &[(&str, &str, &str, &str)] = &[
    ("empty file", "error", "v0_empty_file", "files_of_a_few_bytes_are_refused_at_once"),
    ("wrong magic", "error", "v0_wrong_magic", "verify_names_the_place_of_any_changed_byte"),
    (
        "header cut at 40 bytes",
        "error",
        "v0_header_cut",
        "file_cut_at_any_length_is_refused_with_both_numbers",
    ),
    (
        "cut in manifest",
        "error",
        "v0_manifest_cut",
        "file_cut_at_any_length_is_refused_with_both_numbers",
    ),
    (
        "cut in page table",
        "error",
        "v0_page_table_cut",
        "file_cut_at_any_length_is_refused_with_both_numbers",
    ),
    (
        "last byte missing",
        "error",
        "v0_last_byte_missing",
        "file_cut_at_any_length_is_refused_with_both_numbers",
    ),
    (
        "one payload byte flipped",
        "error; accepted by its second reader",
        "v0_payload_byte_flipped",
        "verify_names_the_place_of_any_changed_byte",
    ),
    (
        "header length 89",
        "error",
        "v0_header_length_89",
        "verify_names_the_place_of_any_changed_byte",
    ),
    ("version 1", "error", "v0_version_1", "archives_of_the_first_format_are_named_as_such"),
    (
        "manifest length 2^63",
        "error",
        "v0_manifest_length_2_63",
        "changed_page_table_never_panics_nor_takes_memory",
    ),
    (
        "manifest length 2^64-1",
        "error",
        "v0_manifest_length_max",
        "changed_page_table_never_panics_nor_takes_memory",
    ),
    (
        "manifest length 0",
        "error",
        "v0_manifest_length_0",
        "manifest_that_is_not_json_or_has_unknown_or_double_fields",
    ),
    ("page count 2^60", "panic", "v0_page_count_2_60", "count_that_needs_more_table_than_there_is"),
    ("page count 2^33", "abort", "v0_page_count_2_33", "count_that_needs_more_table_than_there_is"),
    (
        "page count 2^24",
        "error after 1.5 GB",
        "v0_page_count_2_24",
        "count_that_needs_more_table_than_there_is",
    ),
    ("page count 0", "error", "v0_page_count_0", "count_that_needs_more_table_than_there_is"),
    (
        "page table offset past the end",
        "error",
        "v0_table_offset_past_the_end",
        "verify_names_the_place_of_any_changed_byte",
    ),
    ("data offset 0", "error", "v0_data_offset_0", ""),
    (
        "archive hash not zero",
        "error; accepted by its second reader",
        "v0_reserved_hash_not_zero",
        "verify_names_the_place_of_any_changed_byte",
    ),
    (
        "page offset past the end",
        "error",
        "v0_offset_past_the_end",
        "length_that_reaches_past_the_end_or_overflows",
    ),
    (
        "page offset 2^64-1",
        "error",
        "v0_offset_overflows",
        "length_that_reaches_past_the_end_or_overflows",
    ),
    (
        "page size 2^40",
        "abort",
        "v0_page_size_2_40",
        "length_that_reaches_past_the_end_or_overflows",
    ),
    (
        "page size 2^62",
        "abort",
        "v0_page_size_2_62",
        "length_that_reaches_past_the_end_or_overflows",
    ),
    (
        "page size 2^64-1",
        "panic",
        "v0_page_size_max",
        "length_that_reaches_past_the_end_or_overflows",
    ),
    ("flags = 1", "error", "v0_flags", "changed_page_table_never_panics_nor_takes_memory"),
    ("duplicate record", "error", "v0_duplicate_record", "id_that_is_no_position"),
    (
        "overlapping pages",
        "error",
        "v0_overlapping_pages",
        "offset_before_the_end_of_the_page_before",
    ),
    (
        "4 kB of junk after the last page",
        "accepted",
        "v0_junk_after_the_last_page",
        "bytes_after_the_end_are_refused",
    ),
    (
        "rope_theta changed in the manifest",
        "accepted",
        "v0_rope_theta_changed",
        "verify_names_the_place_of_any_changed_byte",
    ),
    ("kv_heads = 3 of 4", "accepted", "v0_kv_heads_3_of_4", ""),
    (
        "shape [7,13] for 32 KiB",
        "accepted",
        "v0_shape_7_13",
        "shape_of_more_or_fewer_bytes_than_the_pieces",
    ),
    ("dtype \"banana\"", "accepted", "v0_dtype_banana", "tensor_of_an_unknown_number_type"),
    (
        "page id ../../evil",
        "error; accepted by its second reader",
        "v0_page_id_evil",
        "file_names_that_lead_elsewhere_or_are_used_twice",
    ),
    ("unknown operator", "error", "v0_unknown_operator", ""),
    (
        "tape names a missing page",
        "error",
        "v0_tape_names_a_missing_page",
        "piece_of_a_page_that_is_no_group_s_first_or_a_file_s",
    ),
    (
        "unknown JSON field",
        "ignored",
        "v0_unknown_json_field",
        "manifest_that_is_not_json_or_has_unknown_or_double_fields",
    ),
    (
        "layers missing",
        "error",
        "v0_layers_missing",
        "manifest_that_is_not_json_or_has_unknown_or_double_fields",
    ),
    ("layers = 2^32", "error", "v0_layers_2_32", ""),
    (
        "duplicate key",
        "error",
        "v0_duplicate_key",
        "manifest_that_is_not_json_or_has_unknown_or_double_fields",
    ),
    ("layers = 2^32-1", "accepted; its planner aborts", "v0_layers_max", ""),
    ("head_dim = 2^63", "accepted; its planner wraps", "v0_head_dim_2_63", ""),
    ("scratch = 2^64-1", "accepted", "v0_scratch_max", ""),
    ("200,000 nested lists", "error", "v0_nested_200000_deep", "manifest_nested_too_deeply"),
    (
        "manifest not UTF-8",
        "error",
        "v0_manifest_not_utf8",
        "manifest_that_is_not_json_or_has_unknown_or_double_fields",
    ),
    ("child fused to a missing parent", "error", "v0_child_of_a_missing_parent", ""),
];

/// Sources of the tests of version 1.
const V1: [&str; 3] = [
    include_str!("../format/lies.rs"),
    include_str!("../format/damage.rs"),
    include_str!("../format/hostile.rs"),
];

/// Whether every row names tests that exist.
pub(crate) fn check(cases: &[&str]) -> Result<(), String> {
    for (lie, _, v0, v1) in ROWS {
        if !cases.contains(v0) {
            return Err(format!("{lie}: there is no case '{v0}'"));
        }
        let there = V1.iter().any(|source| source.contains(&format!("fn {v1}(")));
        if !v1.is_empty() && !there {
            return Err(format!("{lie}: there is no test '{v1}'"));
        }
    }
    Ok(())
}

pub(crate) fn print_table(_: &[Case]) {
    println!("| lie | earlier program | version 0 here | version 1 |\n|---|---|---|---|");
    for (lie, earlier, v0, v1) in ROWS {
        let v1 = if v1.is_empty() { "no such field" } else { v1 };
        println!("| {lie} | {earlier} | {v0} | {v1} |");
    }
}
