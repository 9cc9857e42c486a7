//! From pages to buffers: each run of a group becomes one buffer, each part one chunk, read and hashed on several
//! threads; then the small tables every program expects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{EMPTY, Engine};
use crate::backend::{Backend, Sink, Slice, Tier};
use crate::format::{PageId, Pages};
use crate::model::rope::RopeTable;
use crate::plan::{Group, GroupId, Plan};
use crate::program::{BufferName, MAX_END_IDS};

/// Loads every group. On an error, what was loaded is given back.
pub(super) fn weights(
    backend: &dyn Backend,
    pages: &dyn Pages,
    plan: &Plan,
    progress: Option<&(dyn Fn(u64, u64) + Send + Sync)>,
) -> crate::Result<BTreeMap<BufferName, Slice>> {
    let total = plan.by_purpose().weights;
    let done = AtomicU64::new(0);
    let loaded = |bytes: u64| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = progress {
            progress(done, total);
        }
    };
    let mut bindings = BTreeMap::new();
    for (id, group) in (0u32..).map(GroupId).zip(&plan.groups) {
        for (run, parts) in (0u32..).zip(&group.runs) {
            match load(backend, pages, group, parts, &loaded) {
                Ok(slice) => {
                    bindings.insert(BufferName::Weight { group: id, run }, slice);
                }
                Err(error) => {
                    bindings.values().for_each(|slice: &Slice| backend.free(slice.buffer));
                    return Err(error);
                }
            }
        }
    }
    Ok(bindings)
}

fn load(
    backend: &dyn Backend,
    pages: &dyn Pages,
    group: &Group,
    parts: &Range<u32>,
    loaded: &(dyn Fn(u64) + Sync),
) -> crate::Result<Slice> {
    let geometry = &group.geometry;
    let chunks: Vec<Range<u64>> = parts
        .clone()
        .map(|part| {
            let start = u64::from(part - parts.start) * geometry.part_stride;
            start..start + geometry.part_bytes(u64::from(part))
        })
        .collect();
    let fill = |index: usize, sink: &mut dyn Sink| {
        let part = parts.start + index as u32;
        let page = PageId(group.first_page.0 + part);
        let bytes = geometry.part_bytes(u64::from(part));
        if let Some(direct) = sink.direct() {
            pages.read(page, direct)?;
        } else {
            let mut buffer = vec![0; bytes as usize];
            pages.read(page, &mut buffer)?;
            sink.write(0, &buffer);
        }
        loaded(bytes);
        Ok(())
    };
    let label = format!("{} {:?}", group.role, group.layer);
    let len = geometry.run_bytes(parts);
    let buffer = backend.alloc_filled(len, Tier::Device, &label, &chunks, &fill)?;
    Ok(Slice { buffer, offset: 0, len })
}

/// Writes the tables that no step changes.
pub(super) fn tables(engine: &Engine, end_ids: &[u32]) -> crate::Result<()> {
    let backend = &engine.0.backend;
    for (table, rope) in (0u32..).zip(&engine.0.spec.ropes) {
        if let Some(&slice) = engine.0.bindings.get(&BufferName::Rope { table }) {
            let frequencies = RopeTable::new(rope).inv_freq;
            let _ = backend.write(slice, bytemuck::cast_slice(&frequencies), &[])?;
        }
    }
    let mut ends = [EMPTY; MAX_END_IDS as usize];
    for (entry, id) in ends.iter_mut().zip(end_ids) {
        *entry = *id;
    }
    let _ = backend.write(engine.slice(BufferName::EndIds), bytemuck::cast_slice(&ends), &[])?;
    let _ = backend.write(engine.slice(BufferName::Status), bytemuck::bytes_of(&EMPTY), &[])?;
    Ok(())
}
