//! `thin stats`: the bytes of an archive by role and format, and what padding costs.

use std::collections::BTreeMap;

use serde::Serialize;
use thintensor::format::{Manifest, PAGE_ALIGN, PageRecord, Pages, Role, groups};

use super::args::StatsArgs;
use super::error::{Error, Exit};
use super::{model, report, v0};

/// Totals of a role in a format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Total {
    pub(crate) role: String,
    pub(crate) format: String,
    /// Matrix groups, sets of vectors, or files.
    pub(crate) groups: u64,
    pub(crate) pages: u64,
    /// Weights, in matrices and vectors.
    pub(crate) parameters: u64,
    /// Bytes that mean something.
    pub(crate) payload_bytes: u64,
    /// Bytes of the pages.
    pub(crate) stored_bytes: u64,
}

/// Totals by role and format, in the order of the page table.
pub(crate) fn totals(manifest: &Manifest, pages: &[PageRecord]) -> Vec<Total> {
    let mut totals: BTreeMap<(Role, &str), Total> = BTreeMap::new();
    for group in groups(pages) {
        let first = group.first_page.0 as usize;
        let records = pages.get(first..first + group.parts as usize).unwrap_or_default();
        let Some(record) = records.first() else { continue };
        let stored: u64 = records.iter().map(|page| page.stored_len).sum();
        let geometry = manifest.descriptors.get(group.descriptor);
        let geometry = geometry.filter(|_| group.role != Role::Asset);
        let (parameters, payload) = match geometry {
            None => (0, stored),
            Some(geometry) if geometry.is_small() => {
                (geometry.planes.iter().map(|plane| plane.rows).sum(), geometry.payload_bytes())
            }
            Some(geometry) => (geometry.rows * geometry.cols, geometry.payload_bytes()),
        };
        let total = totals.entry((group.role, record.format.name())).or_insert_with(|| Total {
            role: group.role.name().into(),
            format: record.format.name().into(),
            ..Total::default()
        });
        total.groups += 1;
        total.pages += u64::from(group.parts);
        total.parameters += parameters;
        total.payload_bytes += payload;
        total.stored_bytes += stored;
    }
    totals.into_values().collect()
}

/// What `stats` reports.
#[derive(Debug, Serialize)]
struct Stats {
    archive: String,
    file_bytes: u64,
    pages: u64,
    parameters: u64,
    payload_bytes: u64,
    /// Zeros inside pages: rows padded to 16 bytes, planes to 256.
    row_padding_bytes: u64,
    /// Zeros between pages, which start at multiples of 4,096.
    page_padding_bytes: u64,
    /// Header, manifest and page table.
    overhead_bytes: u64,
    totals: Vec<Total>,
}

/// Runs the command.
pub(crate) fn stats(args: &StatsArgs) -> Result<Exit, Error> {
    let source = model::source(&args.archive)?;
    if let Some(archive) = model::open_v0(&source)? {
        return v0::stats(&archive, args.json);
    }
    let archive = model::open_archive(&source)?;
    let totals = totals(archive.manifest(), archive.pages());
    let sum = |value: fn(&Total) -> u64| totals.iter().map(value).sum::<u64>();
    let stored = sum(|total| total.stored_bytes);
    let gap = |page: &PageRecord| page.stored_len.next_multiple_of(PAGE_ALIGN) - page.stored_len;
    let gaps: u64 = archive.pages().iter().map(gap).sum();
    let stats = Stats {
        archive: archive.name().into(),
        file_bytes: archive.file_len(),
        pages: archive.pages().len() as u64,
        parameters: sum(|total| total.parameters),
        payload_bytes: sum(|total| total.payload_bytes),
        row_padding_bytes: stored.saturating_sub(sum(|total| total.payload_bytes)),
        page_padding_bytes: gaps,
        overhead_bytes: archive.file_len().saturating_sub(stored + gaps),
        totals,
    };
    if args.json {
        report::print_json(&stats)?;
    } else {
        report::print(&text(&stats))?;
    }
    Ok(Exit::Success)
}

/// A table of totals.
pub(crate) fn table(totals: &[Total]) -> String {
    let rows: Vec<Vec<String>> = totals
        .iter()
        .map(|total| {
            vec![
                total.role.clone(),
                total.format.clone(),
                report::grouped(total.groups),
                report::grouped(total.pages),
                report::grouped(total.parameters),
                report::grouped(total.payload_bytes),
                report::grouped(total.stored_bytes),
            ]
        })
        .collect();
    let header =
        ["role", "format", "groups", "pages", "parameters", "payload bytes", "stored bytes"];
    report::table(&header, &rows)
}

fn text(stats: &Stats) -> String {
    let fields = report::fields(&[
        ("archive", stats.archive.clone()),
        (
            "file",
            format!(
                "{} bytes ({})",
                report::grouped(stats.file_bytes),
                report::bytes(stats.file_bytes)
            ),
        ),
        ("pages", report::grouped(stats.pages)),
        ("parameters", report::grouped(stats.parameters)),
        ("payload", format!("{} bytes", report::grouped(stats.payload_bytes))),
        ("row padding", format!("{} bytes", report::grouped(stats.row_padding_bytes))),
        ("page padding", format!("{} bytes", report::grouped(stats.page_padding_bytes))),
        ("header and tables", format!("{} bytes", report::grouped(stats.overhead_bytes))),
    ]);
    format!("{fields}\n{}", table(&stats.totals))
}
