//! A matrix group as the kernels see it: rows found through the part layout, decoded to f32.

use std::ops::Range;

use crate::format::{Geometry, Plane, PlaneKind};
use crate::quant::float::{bf16_to_f32, f16_to_f32};
use crate::quant::gguf::Planes;
use crate::quant::{Encoding, Format};

/// A matrix whose parts lie in one buffer or several.
pub(crate) struct Matrix<'a> {
    geometry: &'a Geometry,
    encoding: Encoding,
    codes: &'a Plane,
    runs: Vec<(Range<u32>, &'a [u8])>,
}

/// The codes of one row.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    /// binary32.
    F32(&'a [f32]),
    /// binary16 bits.
    F16(&'a [u16]),
    /// bfloat16 bits.
    BF16(&'a [u16]),
    /// The planes of a format with scales.
    Scaled(Encoding, Planes<'a>),
}

impl<'a> Matrix<'a> {
    /// A matrix over the bytes of its runs. `None` where the format has no rows to decode.
    pub(crate) fn new(geometry: &'a Geometry, runs: Vec<(Range<u32>, &'a [u8])>) -> Option<Self> {
        let codes = geometry.plane(PlaneKind::Codes)?;
        let encoding = Encoding::of(&geometry.quantization)?;
        Some(Matrix { geometry, encoding, codes, runs })
    }

    /// Rows.
    pub(crate) fn rows(&self) -> u32 {
        self.geometry.rows as u32
    }

    /// Numbers per row.
    pub(crate) fn cols(&self) -> usize {
        self.geometry.cols as usize
    }

    /// The codes of a row.
    pub(crate) fn codes(&self, row: u32) -> Row<'a> {
        let part = (u64::from(row) >> self.geometry.shift()) as u32;
        let (parts, bytes) = self
            .runs
            .iter()
            .find(|(parts, _)| parts.contains(&part))
            .expect("runs cover all parts: checked in compile");
        let skipped = u64::from(parts.start) * self.geometry.part_stride;
        let of_plane = |plane: &Plane| {
            let start = (self.geometry.row_offset(plane, u64::from(row)) - skipped) as usize;
            &bytes[start..start + plane.row_bytes as usize]
        };
        let codes = of_plane(self.codes);
        match self.geometry.format {
            Format::F32 => Row::F32(bytemuck::cast_slice(codes)),
            Format::F16 => Row::F16(bytemuck::cast_slice(codes)),
            Format::BF16 => Row::BF16(bytemuck::cast_slice(codes)),
            Format::Bytes => unreachable!("compile refuses formats without numbers"),
            Format::Int8
            | Format::Mxfp4
            | Format::Q8_0
            | Format::Q4_0
            | Format::Q4_1
            | Format::Q4K
            | Format::Q5K
            | Format::Q6K => {
                let planes = self.geometry.row_planes(|plane| Some(of_plane(plane)));
                Row::Scaled(self.encoding, planes.unwrap_or_default())
            }
        }
    }

    /// A row as f32.
    pub(crate) fn row(&self, row: u32, out: &mut [f32]) {
        self.codes(row).widen(out);
    }
}

impl Row<'_> {
    /// The numbers as f32.
    pub(crate) fn widen(self, out: &mut [f32]) {
        let halves = |codes: &[u16], out: &mut [f32], widen: fn(u16) -> f32| {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = widen(*code);
            }
        };
        match self {
            Row::F32(codes) => out[..codes.len()].copy_from_slice(codes),
            Row::F16(codes) => halves(codes, out, f16_to_f32),
            Row::BF16(codes) => halves(codes, out, bf16_to_f32),
            Row::Scaled(encoding, planes) => encoding.decode(&planes, out),
        }
    }
}
