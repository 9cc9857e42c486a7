//! What `inspect` and `stats` show of an archive of version 0: the report of the program that wrote the format.

use thintensor::import::v0::Archive;
use thintensor::import::v0::stats::{Bucket, Stats, stats as count};

use super::error::{Error, Exit};
use super::report;

/// Largest pages shown.
const LARGEST: usize = 8;
/// Rows of a table of totals.
const ROWS: usize = 12;

/// `thin inspect`. What the archive says is shown without hashing its pages.
///
/// **Errors**: stdout refuses.
pub(crate) fn inspect(archive: &Archive, json: bool) -> Result<Exit, Error> {
    let stats = count(archive);
    if json {
        return print_json(&stats);
    }
    let model = &stats.model;
    let rest = &stats.rest;
    let tied = model.tie_word_embeddings.unwrap_or(false);
    let mut text = report::fields(&[
        ("archive", archive.name()),
        ("version", "0".to_owned()),
        (
            "model",
            format!(
                "{} layers={} hidden={} heads={} kv_heads={} head_dim={} tied={tied} dtype={}",
                model.arch,
                model.layers,
                model.hidden_size,
                model.heads,
                model.kv_heads,
                rest.head_dim,
                model.dtype
            ),
        ),
        ("manifest", format!("{} bytes @ {}", stats.manifest_bytes, rest.manifest_off)),
        ("page table", format!("{} records @ {}", stats.page_table_records, rest.table_off)),
        ("data", format!("@ {}", stats.data_offset)),
        ("weights", report::bytes(stats.total_raw_bytes)),
        ("pages", stats.page_count.to_string()),
        ("execution stages", stats.execution.stage_count.to_string()),
        ("scratch", report::bytes(rest.scratch_bytes)),
        (
            "kv policy",
            format!("recent {} high precision, older {}", rest.kv_recent, rest.kv_old_codec),
        ),
    ]);
    text.push('\n');
    text.push_str(&largest(&stats));
    report::print(&text)?;
    Ok(Exit::Success)
}

/// `thin stats`.
///
/// **Errors**: a page is damaged, or stdout refuses.
pub(crate) fn stats(archive: &Archive, json: bool) -> Result<Exit, Error> {
    archive.check_pages().map_err(thintensor::Error::from)?;
    let stats = count(archive);
    if json {
        return print_json(&stats);
    }
    let mut text = report::fields(&[
        ("archive", archive.name()),
        ("file", format!("{} bytes", report::grouped(stats.archive_bytes))),
        ("tensors", report::grouped(stats.page_count)),
        ("pages", report::grouped(stats.page_table_records)),
        ("payload", format!("{} bytes", report::grouped(stats.total_raw_bytes))),
        ("stages", report::grouped(stats.execution.stage_count)),
    ]);
    for (title, buckets) in [
        ("role", &stats.per_op),
        ("number type", &stats.by_dtype),
        ("layout", &stats.by_backend_layout),
    ] {
        text.push_str(&format!("\n{}", totals(title, buckets)));
    }
    text.push_str(&format!("\n{}", largest(&stats)));
    report::print(&text)?;
    Ok(Exit::Success)
}

fn print_json(stats: &Stats) -> Result<Exit, Error> {
    report::print_json(stats)?;
    Ok(Exit::Success)
}

fn totals(title: &str, buckets: &[Bucket]) -> String {
    let rows: Vec<Vec<String>> = buckets
        .iter()
        .take(ROWS)
        .map(|bucket| {
            let (pages, bytes) = (report::grouped(bucket.pages), report::grouped(bucket.raw_bytes));
            vec![bucket.name.clone(), pages, bytes]
        })
        .collect();
    report::table(&[title, "tensors", "bytes"], &rows)
}

fn largest(stats: &Stats) -> String {
    let rows: Vec<Vec<String>> = stats
        .largest_pages
        .iter()
        .take(LARGEST)
        .map(|page| {
            let layer = page.layer.map_or_else(|| "global".to_owned(), |layer| layer.to_string());
            vec![page.id.clone(), report::bytes(page.raw_bytes), layer]
        })
        .collect();
    report::table(&["largest tensors", "size", "layer"], &rows)
}
