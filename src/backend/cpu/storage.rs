//! Buffers of the CPU backend: zeroed words behind a lock, seen as bytes or numbers without `unsafe`.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::{AnyBitPattern, NoUninit};

use crate::plan::KvFormat;
use crate::quant::float::{bf16_to_f32, f16_to_f32};

/// The memory of one buffer; 8-byte words, so that every number in it is aligned.
pub(crate) struct Storage {
    words: Vec<u64>,
    bytes: usize,
}

impl Storage {
    /// Zeroed memory, or `None` where there is not enough.
    pub(crate) fn zeroed(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        let count = bytes.div_ceil(8);
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(Storage { words, bytes })
    }

    /// Size asked for.
    pub(crate) fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The contents, to change.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// A slice of a buffer that a program binds.
#[derive(Clone)]
pub(crate) struct Bound {
    /// The buffer.
    pub(crate) storage: Arc<RwLock<Storage>>,
    /// The bytes bound; checked against the buffer, start a multiple of 8.
    pub(crate) range: Range<usize>,
}

impl Bound {
    /// Locks for reading.
    pub(crate) fn read(&self) -> ReadGuard<'_> {
        // A panic elsewhere leaves numbers, not broken invariants.
        let guard = self.storage.read().unwrap_or_else(PoisonError::into_inner);
        ReadGuard { guard, range: self.range.clone() }
    }

    /// Locks for writing.
    pub(crate) fn write(&self) -> WriteGuard<'_> {
        let guard = self.storage.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard { guard, range: self.range.clone() }
    }
}

/// A bound slice, locked for reading.
pub(crate) struct ReadGuard<'a> {
    guard: RwLockReadGuard<'a, Storage>,
    range: Range<usize>,
}

impl ReadGuard<'_> {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.guard.bytes()[self.range.clone()]
    }

    /// The numbers; a rest too short for one is left out.
    pub(crate) fn cast<T: AnyBitPattern>(&self) -> &[T] {
        let bytes = self.bytes();
        bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
    }
}

/// A bound slice, locked for writing.
pub(crate) struct WriteGuard<'a> {
    guard: RwLockWriteGuard<'a, Storage>,
    range: Range<usize>,
}

impl WriteGuard<'_> {
    /// The bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.guard.bytes_mut()[self.range.clone()]
    }

    /// The numbers; a rest too short for one is left out.
    pub(crate) fn cast<T: AnyBitPattern + NoUninit>(&mut self) -> &mut [T] {
        let bytes = self.bytes();
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytes[..whole])
    }
}

/// Stored keys and values, to change number by number.
pub(crate) struct Numbers<'a>(pub(crate) &'a mut [u8]);

impl Numbers<'_> {
    /// Sets a 16-bit number.
    pub(crate) fn set_u16(&mut self, index: usize, value: u16) {
        self.0[index * 2..index * 2 + 2].copy_from_slice(&value.to_ne_bytes());
    }

    /// Sets a 32-bit number.
    pub(crate) fn set_u32(&mut self, index: usize, value: u32) {
        self.0[index * 4..index * 4 + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// A row of stored keys or values from element `at` on, as f32.
pub(crate) fn kv_row(bytes: &[u8], format: KvFormat, at: usize, out: &mut [f32]) {
    let halves = |out: &mut [f32], widen: fn(u16) -> f32| {
        let stored: &[u16] = bytemuck::cast_slice(&bytes[at * 2..(at + out.len()) * 2]);
        for (out, stored) in out.iter_mut().zip(stored) {
            *out = widen(*stored);
        }
    };
    match format {
        KvFormat::F32 => {
            out.copy_from_slice(bytemuck::cast_slice(&bytes[at * 4..(at + out.len()) * 4]));
        }
        KvFormat::F16 => halves(out, f16_to_f32),
        KvFormat::BF16 => halves(out, bf16_to_f32),
    }
}
