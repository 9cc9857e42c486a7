//! What is stored how and where: the groups a model needs, found in its pages and checked against its
//! description, and the KV pool. Pure: no device, no I/O. Start at [`Plan::new`]. So far everything lives in
//! one tier; [`Plan::by_purpose`] is what a budget is compared with.

use crate::format::{Geometry, Manifest, NONE, PageId, PageRecord, PlaneKind, Role, Vector};
use crate::model::{LayerSpec, ModelSpec};

/// Positions per KV block: one block is the unit of allocation and of rewinding.
pub const KV_BLOCK: u32 = 32;

/// Index into [`Plan::groups`]; the same in every program of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A matrix group, or the vectors of a layer, and the pages that hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What it is.
    pub role: Role,
    /// Decoder layer, or none.
    pub layer: Option<u32>,
    /// Expert, or none.
    pub expert: Option<u32>,
    /// Shape and place of every row.
    pub geometry: Geometry,
    /// First page; the parts follow one another.
    pub first_page: PageId,
    /// Pages.
    pub parts: u32,
    /// Which parts share a buffer; one run unless [`Plan::split`] cut it.
    pub runs: Vec<std::ops::Range<u32>>,
}

impl Group {
    /// Bytes of all its buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|parts| self.geometry.run_bytes(parts)).sum()
    }
}

/// Number format of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// binary32: four bytes, exact.
    F32,
    /// binary16.
    F16,
    /// bfloat16, the default.
    BF16,
}

impl KvFormat {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            KvFormat::F32 => 4,
            KvFormat::F16 | KvFormat::BF16 => 2,
        }
    }

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::BF16 => "bf16",
        }
    }
}

/// Where a layer's cached keys and values lie in its one buffer:
/// `[kv_heads, blocks, 2 (keys, values), KV_BLOCK, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Number format.
    pub format: KvFormat,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Blocks in the pool, shared by all sequences.
    pub blocks: u32,
}

impl KvLayout {
    /// Bytes of the buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.kv_heads)
            * u64::from(self.blocks)
            * 2
            * u64::from(KV_BLOCK)
            * u64::from(self.head_dim)
            * self.format.bytes()
    }

    /// First element of one head's keys (`values` false) or values in a block, at `offset` positions in.
    #[must_use]
    pub fn element(&self, kv_head: u32, block: u32, values: bool, offset: u32) -> usize {
        let row =
            (kv_head as usize * self.blocks as usize + block as usize) * 2 + usize::from(values);
        (row * KV_BLOCK as usize + offset as usize) * self.head_dim as usize
    }
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Positions one sequence may reach.
    pub context: u32,
    /// Sequences that may be held at once.
    pub sequences: u32,
    /// Format of the KV pool.
    pub kv_format: KvFormat,
}

/// Everything the decoder and the engine need to know about storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Every group, in page order.
    pub groups: Vec<Group>,
    /// KV layout of each layer.
    pub kv: Vec<KvLayout>,
    /// What was asked for.
    pub options: PlanOptions,
}

/// A model that does not hold what its description promises.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A group is not among the pages.
    #[error("{role} of {place} is missing")]
    MissingGroup {
        /// Its role.
        role: Role,
        /// "layer 3" or "the model".
        place: String,
    },
    /// A group has another shape than the description says.
    #[error("{role} of {place} is [{}, {}], but the model description says [{}, {}]",
        found.0, found.1, expected.0, expected.1)]
    Shape {
        /// Its role.
        role: Role,
        /// "layer 3" or "the model".
        place: String,
        /// Rows and columns stored.
        found: (u64, u64),
        /// Rows and columns described.
        expected: (u64, u64),
    },
    /// A vector is not in its page, or has another length.
    #[error("{vector} of {place} has {found} numbers, but the model description says {expected}")]
    Vector {
        /// Which.
        vector: Vector,
        /// "layer 3" or "the model".
        place: String,
        /// Numbers stored; 0 when missing.
        found: u64,
        /// Numbers described.
        expected: u64,
    },
    /// The KV pool has more blocks than an index can name.
    #[error(
        "a context of {context} tokens in {sequences} sequences is more than this version can index"
    )]
    Context {
        /// Positions asked for.
        context: u32,
        /// Sequences asked for.
        sequences: u32,
    },
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purposes {
    /// Matrix groups and vectors.
    pub weights: u64,
    /// The KV pool.
    pub kv: u64,
    /// Activations of the largest step, tables of the step and of the sampler.
    pub activations: u64,
}

impl Purposes {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.activations
    }
}

impl Plan {
    /// Finds and checks every group that `spec` needs.
    ///
    /// **Errors**: [`Error`] naming the group or vector that is missing or misshapen.
    pub fn new(
        manifest: &Manifest,
        pages: &[PageRecord],
        spec: &ModelSpec,
        options: PlanOptions,
    ) -> Result<Self, Error> {
        let blocks = u64::from(options.context.div_ceil(KV_BLOCK)) * u64::from(options.sequences);
        let blocks = u32::try_from(blocks)
            .ok()
            .filter(|&blocks| blocks > 0 && blocks < NONE / KV_BLOCK)
            .ok_or(Error::Context { context: options.context, sequences: options.sequences })?;
        let kv = spec
            .layers
            .iter()
            .map(|layer| KvLayout {
                format: options.kv_format,
                kv_heads: layer.num_key_value_heads,
                head_dim: layer.head_dim,
                blocks,
            })
            .collect();
        let plan = Plan { groups: groups(manifest, pages), kv, options };
        plan.check(spec)?;
        Ok(plan)
    }

    /// Cuts groups between parts so that no buffer exceeds `max_bytes`; a part is never cut.
    pub fn split(&mut self, max_bytes: u64) {
        for group in &mut self.groups {
            let stride = group.geometry.part_stride.max(1);
            let most = u32::try_from(max_bytes / stride).unwrap_or(u32::MAX).clamp(1, group.parts);
            let starts = (0..group.parts).step_by(most as usize);
            group.runs = starts.map(|first| first..(first + most).min(group.parts)).collect();
        }
    }

    /// The group with this role and layer.
    #[must_use]
    pub fn find(&self, role: Role, layer: Option<u32>) -> Option<GroupId> {
        let index = self.groups.iter().position(|group| {
            group.role == role && group.layer == layer && group.expert.is_none()
        })?;
        u32::try_from(index).ok().map(GroupId)
    }

    /// The groups that together are this role of this layer, in the order of their rows: several where members
    /// are stored in different formats (queries and keys, then values).
    pub fn runs(&self, role: Role, layer: Option<u32>) -> impl Iterator<Item = GroupId> {
        (0u32..).zip(&self.groups).filter_map(move |(id, group)| {
            let same = group.role == role && group.layer == layer && group.expert.is_none();
            same.then_some(GroupId(id))
        })
    }

    /// The group behind an id of this plan.
    #[must_use]
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    /// The group that computes logits: the head, or the embedding where it is tied.
    #[must_use]
    pub fn head(&self, spec: &ModelSpec) -> Option<GroupId> {
        self.find(if spec.tie_word_embeddings { Role::Embed } else { Role::Head }, None)
    }

    /// Weight and KV bytes; the engine adds the activations of its programs.
    #[must_use]
    pub fn by_purpose(&self) -> Purposes {
        Purposes {
            weights: self.groups.iter().map(Group::bytes).sum(),
            kv: self.kv.iter().map(KvLayout::bytes).sum(),
            activations: 0,
        }
    }

    fn check(&self, spec: &ModelSpec) -> Result<(), Error> {
        let hidden = u64::from(spec.hidden_size);
        let vocab = u64::from(spec.vocab_size);
        self.check_matrix(Role::Embed, None, vocab, hidden)?;
        if !spec.tie_word_embeddings {
            self.check_matrix(Role::Head, None, vocab, hidden)?;
        }
        self.check_vector(Vector::FinalNorm, None, hidden)?;
        for (index, layer) in (0u32..).zip(&spec.layers) {
            self.check_layer(index, layer, hidden)?;
        }
        Ok(())
    }

    fn check_layer(&self, index: u32, layer: &LayerSpec, hidden: u64) -> Result<(), Error> {
        let at = Some(index);
        let qkv = u64::from(ModelSpec::qkv_rows(layer));
        let ffn = u64::from(layer.intermediate_size);
        self.check_runs(Role::AttnQkv, at, qkv, hidden)?;
        self.check_matrix(Role::AttnOut, at, hidden, u64::from(layer.q_width()))?;
        self.check_matrix(Role::FfnGateUp, at, 2 * ffn, hidden)?;
        self.check_matrix(Role::FfnDown, at, hidden, ffn)?;
        let head_dim = u64::from(layer.head_dim);
        let vectors = [
            (true, Vector::AttnNorm, hidden),
            (true, Vector::FfnNorm, hidden),
            (layer.qk_norm, Vector::QNorm, head_dim),
            (layer.qk_norm, Vector::KNorm, head_dim),
            (layer.qkv_bias, Vector::AttnQkvBias, qkv),
            (layer.attn_out_bias, Vector::AttnOutBias, hidden),
            (layer.mlp_bias, Vector::FfnGateUpBias, 2 * ffn),
            (layer.mlp_bias, Vector::FfnDownBias, hidden),
        ];
        for (_, vector, len) in vectors.into_iter().filter(|(needed, ..)| *needed) {
            self.check_vector(vector, at, len)?;
        }
        Ok(())
    }

    fn check_matrix(
        &self,
        role: Role,
        layer: Option<u32>,
        rows: u64,
        cols: u64,
    ) -> Result<(), Error> {
        let place = place(layer);
        let Some(id) = self.find(role, layer) else {
            return Err(Error::MissingGroup { role, place });
        };
        let geometry = &self.group(id).geometry;
        let found = (geometry.rows, geometry.cols);
        if found != (rows, cols) || geometry.plane(PlaneKind::Codes).is_none() {
            return Err(Error::Shape { role, place, found, expected: (rows, cols) });
        }
        Ok(())
    }

    /// As [`Plan::check_matrix`], for rows that may lie in several groups.
    fn check_runs(
        &self,
        role: Role,
        layer: Option<u32>,
        rows: u64,
        cols: u64,
    ) -> Result<(), Error> {
        if self.runs(role, layer).nth(1).is_none() {
            return self.check_matrix(role, layer, rows, cols);
        }
        let mut found = 0u64;
        for id in self.runs(role, layer) {
            let geometry = &self.group(id).geometry;
            found = found.saturating_add(geometry.rows);
            let is_matrix = geometry.plane(PlaneKind::Codes).is_some();
            if geometry.cols != cols || !is_matrix || found > rows {
                let found = (found, geometry.cols);
                let place = place(layer);
                return Err(Error::Shape { role, place, found, expected: (rows, cols) });
            }
        }
        if found == rows {
            return Ok(());
        }
        Err(Error::Shape {
            role,
            place: place(layer),
            found: (found, cols),
            expected: (rows, cols),
        })
    }

    fn check_vector(&self, vector: Vector, layer: Option<u32>, len: u64) -> Result<(), Error> {
        let Some(small) = self.find(Role::Small, layer) else {
            return Err(Error::MissingGroup { role: Role::Small, place: place(layer) });
        };
        let plane = self.group(small).geometry.plane(PlaneKind::Vector(vector));
        let found = plane.map_or(0, |plane| plane.rows);
        if found != len {
            return Err(Error::Vector { vector, place: place(layer), found, expected: len });
        }
        Ok(())
    }
}

fn place(layer: Option<u32>) -> String {
    layer.map_or_else(|| "the model".into(), |layer| format!("layer {layer}"))
}

/// Consecutive pages of one group, put together; assets left out.
fn groups(manifest: &Manifest, pages: &[PageRecord]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for page in pages.iter().filter(|page| page.role != Role::Asset) {
        if page.part > 0 {
            // `format::check` saw to it that parts follow one another.
            if let Some(group) = groups.last_mut() {
                group.parts += 1;
                if let Some(run) = group.runs.last_mut() {
                    run.end += 1;
                }
            }
        } else if let Some(geometry) = manifest.descriptors.get(page.descriptor as usize) {
            groups.push(Group {
                role: page.role,
                layer: page.layer,
                expert: page.expert,
                geometry: geometry.clone(),
                first_page: PageId(page.id),
                parts: 1,
                runs: std::iter::once(0..1).collect(),
            });
        }
    }
    groups
}
