//! A tiny model in memory: a description, the pages it needs, and weights made from a seed as they are read.
//! Odd sizes on purpose: hidden 96, heads of 24, three query heads to a KV head, 257 ids.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use thintensor::format::{
    Error, Geometry, Manifest, PageId, PageRecord, Pages, PlaneKind, Role, Vector, record::number,
};
use thintensor::model::spec::{LayerSpec, NormKind, NormSpec, RopeScaling, RopeSpec};
use thintensor::model::{Activation, ModelSpec};
use thintensor::quant::Format;
use thintensor::quant::float::{f32_to_bf16, f32_to_f16};

pub(crate) const HIDDEN: u32 = 96;
pub(crate) const VOCAB: u32 = 257;
pub(crate) const LAYERS: u32 = 3;
pub(crate) const TRAINED: u32 = 1024;

/// The plain model: llama with an untied head.
pub(crate) fn llama() -> ModelSpec {
    let layer = LayerSpec {
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 24,
        intermediate_size: 100,
        sliding_window: None,
        rope: Some(0),
        attention_scale: 0.204_124_15, // 24^-0.5
        qk_norm: false,
        qkv_bias: false,
        attn_out_bias: false,
        mlp_bias: false,
    };
    ModelSpec {
        model_type: "llama".into(),
        hidden_size: HIDDEN,
        vocab_size: VOCAB,
        max_position_embeddings: TRAINED,
        norm: NormSpec { kind: NormKind::RmsNorm, eps: 1e-5 },
        hidden_act: Activation::Silu,
        tie_word_embeddings: false,
        ropes: vec![RopeSpec {
            rotary_dim: 24,
            rope_theta: 10_000.0,
            scaling: RopeScaling::Default,
        }],
        layers: vec![layer; LAYERS as usize],
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    }
}

/// The plain model with every layer changed.
pub(crate) fn with_layers(name: &str, change: impl Fn(usize, &mut LayerSpec)) -> ModelSpec {
    let mut spec = ModelSpec { model_type: name.into(), ..llama() };
    spec.layers.iter_mut().enumerate().for_each(|(index, layer)| change(index, layer));
    spec
}

pub(crate) fn tied() -> ModelSpec {
    ModelSpec { tie_word_embeddings: true, ..llama() }
}

/// Every bias there is, and per-head norms.
pub(crate) fn biases_and_qk_norm() -> ModelSpec {
    with_layers("biased", |_, layer| {
        (layer.qk_norm, layer.qkv_bias) = (true, true);
        (layer.attn_out_bias, layer.mlp_bias) = (true, true);
    })
}

/// Two layers of every three see only the last `window` positions.
pub(crate) fn windowed(window: u32) -> ModelSpec {
    with_layers("windowed", |index, layer| {
        layer.sliding_window = Some(window).filter(|_| index % 3 != 2);
    })
}

/// A number that is not finite, planted in one weight.
#[derive(Clone, Copy)]
pub(crate) struct Plant {
    pub(crate) role: Role,
    pub(crate) layer: Option<u32>,
    pub(crate) row: u64,
}

/// The model as pages.
pub(crate) struct Tiny {
    pub(crate) manifest: Manifest,
    pub(crate) records: Vec<PageRecord>,
    pub(crate) plant: Option<Plant>,
    /// Reading this page fails.
    pub(crate) broken: Option<PageId>,
    seed: u64,
}

impl Tiny {
    /// Weights of a format; another seed is another model.
    pub(crate) fn new(spec: &ModelSpec, format: Format, seed: u64) -> Self {
        let mut tiny = Tiny {
            manifest: Manifest {
                spec: serde_json::to_value(spec).expect("a description is plain data"),
                ..Manifest::default()
            },
            records: Vec::new(),
            plant: None,
            broken: None,
            seed,
        };
        let matrix = |rows: u32, cols: u32| {
            Geometry::matrix(format, rows.into(), cols.into()).expect("a small matrix")
        };
        let hidden = u64::from(HIDDEN);
        tiny.add(Role::Embed, None, matrix(VOCAB, HIDDEN));
        tiny.add(Role::Small, None, small(&[(Vector::FinalNorm, hidden)]));
        for (index, layer) in (0u32..).zip(&spec.layers) {
            let (qkv, ffn) = (ModelSpec::qkv_rows(layer), layer.intermediate_size);
            let at = Some(index);
            tiny.add(Role::AttnQkv, at, matrix(qkv, HIDDEN));
            tiny.add(Role::AttnOut, at, matrix(HIDDEN, layer.q_width()));
            tiny.add(Role::FfnGateUp, at, matrix(2 * ffn, HIDDEN));
            tiny.add(Role::FfnDown, at, matrix(HIDDEN, ffn));
            let vectors = [
                (true, Vector::AttnNorm, hidden),
                (true, Vector::FfnNorm, hidden),
                (layer.qk_norm, Vector::QNorm, layer.head_dim.into()),
                (layer.qk_norm, Vector::KNorm, layer.head_dim.into()),
                (layer.qkv_bias, Vector::AttnQkvBias, qkv.into()),
                (layer.attn_out_bias, Vector::AttnOutBias, hidden),
                (layer.mlp_bias, Vector::FfnGateUpBias, 2 * u64::from(ffn)),
                (layer.mlp_bias, Vector::FfnDownBias, hidden),
            ];
            let present: Vec<(Vector, u64)> = vectors
                .into_iter()
                .filter(|(present, ..)| *present)
                .map(|(_, vector, len)| (vector, len))
                .collect();
            tiny.add(Role::Small, at, small(&present));
        }
        if !spec.tie_word_embeddings {
            tiny.add(Role::Head, None, matrix(VOCAB, HIDDEN));
        }
        number(&mut tiny.records);
        tiny
    }

    fn add(&mut self, role: Role, layer: Option<u32>, geometry: Geometry) {
        let descriptor = self.manifest.descriptors.len() as u32;
        self.records.extend(PageRecord::of_group(role, layer, None, descriptor, &geometry));
        self.manifest.descriptors.push(geometry);
    }

    /// Numbers of size 1 in the embedding, and in the other matrices such that a product keeps the size of
    /// its input; norms around 1, biases around 0.
    fn value(&self, page: &PageRecord, kind: PlaneKind, row: u64, col: u64) -> f32 {
        if let Some(plant) = self.plant
            && (plant.role, plant.layer, plant.row) == (page.role, page.layer, row)
            && col == 5
        {
            return f32::NAN;
        }
        let key = [u64::from(page.id), kind_code(kind), row, col];
        let unit = unit(key.iter().fold(self.seed, |state, &part| mix(state ^ part)));
        match (kind, page.role) {
            (PlaneKind::Vector(vector), _) if is_norm(vector) => 1.0 + 0.2 * unit,
            (PlaneKind::Vector(_), _) => 0.2 * unit,
            (_, Role::Embed) => unit,
            (_, Role::Head) => unit * 0.5,
            _ => {
                let cols = self.manifest.descriptors[page.descriptor as usize].cols;
                unit * (3.0 / cols as f32).sqrt()
            }
        }
    }
}

fn small(vectors: &[(Vector, u64)]) -> Geometry {
    Geometry::small(vectors).expect("a small page")
}

fn is_norm(vector: Vector) -> bool {
    matches!(
        vector,
        Vector::AttnNorm | Vector::FfnNorm | Vector::FinalNorm | Vector::QNorm | Vector::KNorm
    )
}

fn kind_code(kind: PlaneKind) -> u64 {
    match kind {
        PlaneKind::Vector(vector) => 1 + u64::from(vector.code()),
        _ => 0,
    }
}

/// One step of splitmix64.
pub(crate) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// -1 to 1.
fn unit(word: u64) -> f32 {
    (word >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// `count` token ids.
pub(crate) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|at| (mix(seed ^ (at << 20)) % u64::from(VOCAB)) as u32).collect()
}

impl Pages for Tiny {
    fn name(&self) -> &str {
        "tiny"
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn pages(&self) -> &[PageRecord] {
        &self.records
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), thintensor::Error> {
        if self.broken == Some(page) {
            let source = std::io::Error::other("the disk is gone");
            return Err(Error::Io { verb: "read", path: "tiny".into(), source }.into());
        }
        let record = &self.records[page.0 as usize];
        let geometry = &self.manifest.descriptors[record.descriptor as usize];
        for plane in &geometry.planes {
            let vector = matches!(plane.kind, PlaneKind::Vector(_));
            let (rows, cols) =
                if vector { (plane.rows, 1) } else { (u64::from(record.rows), geometry.cols) };
            for row in 0..rows {
                let mut at = (plane.offset + row * plane.row_stride) as usize;
                for col in 0..cols {
                    let value =
                        self.value(record, plane.kind, u64::from(record.first_row) + row, col);
                    let code: &[u8] = match geometry.format {
                        Format::F32 | Format::Bytes => &value.to_le_bytes(),
                        Format::F16 => &f32_to_f16(value).to_le_bytes(),
                        Format::BF16 => &f32_to_bf16(value).to_le_bytes(),
                        _ => unreachable!("tiny models have plain numbers"),
                    };
                    out[at..at + code.len()].copy_from_slice(code);
                    at += code.len();
                }
            }
        }
        Ok(())
    }
}
