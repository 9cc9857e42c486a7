//! Which rows of which source tensor go where: the pure half of packing.
//!
//! The model's description says which groups there must be and how large; the architecture's row says which
//! names fill them. Every tensor must find its place and every place its tensor; the shapes must be those
//! that the config implies. Start at [`place`].

use std::collections::BTreeMap;

use super::Error;
use super::coding::Coding;
use super::file::Entry;
use crate::format::manifest::Piece;
use crate::format::{Geometry, Role, Vector};
use crate::model::arch::{Architecture, Home, Names, Part, Place, TensorName};
use crate::model::{LayerSpec, ModelSpec};
use crate::quant::gguf::TensorType;
use crate::quant::{Encoding, Format};

/// A tensor as its file describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceTensor<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: &'static str,
    /// The type, where this version reads it.
    pub(super) tensor_type: Option<TensorType>,
    pub(super) shape: &'a [u64],
}

impl<'a> SourceTensor<'a> {
    pub(super) fn of(entry: &'a Entry) -> Self {
        SourceTensor {
            name: &entry.name,
            dtype: entry.dtype,
            tensor_type: entry.tensor_type(),
            shape: &entry.shape,
        }
    }
}

/// The kind of file that tensors come from.
#[derive(Clone, Copy)]
pub(super) struct Convention<'a> {
    pub(super) row: &'static Architecture,
    pub(super) names: &'static Names,
    /// Whether rows of queries and keys are ordered for rotation of neighbouring pairs.
    pub(super) interleaved: bool,
    /// Rounds blocks to bf16, and names tensors as a folder would; says whether a vector is bf16 already.
    pub(super) dequantize: Option<&'a dyn Fn(usize) -> bool>,
}

/// A matrix group, or the vectors of one layer.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) role: Role,
    pub(super) layer: Option<u32>,
    pub(super) geometry: Geometry,
    pub(super) members: Vec<Member>,
}

/// A run of source rows in a group; a "row" of a vector is one number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Index of the source tensor.
    pub(super) tensor: usize,
    /// Plane of the group.
    pub(super) plane: u32,
    pub(super) source_row: u64,
    pub(super) rows: u64,
    pub(super) first_row: u64,
    pub(super) row_step: u64,
    pub(super) coding: Coding,
}

impl Member {
    /// The member as the manifest writes it.
    pub(super) fn piece(&self, page: u32) -> Piece {
        Piece {
            page,
            plane: self.plane,
            source_row: self.source_row,
            rows: self.rows,
            first_row: self.first_row,
            row_step: self.row_step,
        }
    }
}

/// Every tensor in its place.
#[derive(Debug)]
pub(super) struct Placed {
    /// Groups in the order a token uses them.
    pub(super) groups: Vec<Group>,
    /// Tensors left out, each with the reason.
    pub(super) ignored: Vec<(usize, &'static str)>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
    /// Names that tensors get, where those are not the source's.
    pub(super) renamed: BTreeMap<usize, String>,
}

/// A group the model must have.
struct Wanted {
    home: Home,
    layer: Option<u32>,
    /// Members in order, each with its rows.
    parts: Vec<(Part, u64)>,
    /// Whether rows of the members alternate, instead of following each other.
    alternate: bool,
    /// Numbers per row; none for a vector.
    cols: Option<u64>,
    /// Rows of a query or key head.
    head_rows: Option<u64>,
}

/// Finds the place of every tensor.
///
/// `same` compares the bytes of two tensors. The spec's `tie_word_embeddings` becomes false where the files
/// nevertheless have an output projection of their own.
pub(super) fn place(
    convention: Convention<'_>,
    spec: &mut ModelSpec,
    tensors: &[SourceTensor<'_>],
    same: &dyn Fn(usize, usize) -> bool,
) -> Result<Placed, Error> {
    let mut found = Found::new(convention, spec, tensors)?;
    found.decide_head(spec, same);
    let mut groups = found.matrix(&head_or_embed(Role::Embed, spec))?;
    for (index, layer) in spec.layers.iter().enumerate() {
        let index = index as u32;
        groups.push(found.small(Some(index), &layer_vectors(spec, layer, index))?);
        for wanted in layer_matrices(spec, layer, index) {
            groups.extend(found.matrix(&wanted)?);
        }
    }
    let hidden = u64::from(spec.hidden_size);
    let norm = vector(Vector::FinalNorm, None, &[(Part::Whole, hidden)], false);
    groups.push(found.small(None, &[norm])?);
    if !spec.tie_word_embeddings {
        groups.extend(found.matrix(&head_or_embed(Role::Head, spec))?);
    }
    found.refuse_unused()?;
    let renamed = found.renamed();
    Ok(Placed { groups, ignored: found.ignored, notes: found.notes, renamed })
}

fn head_or_embed(role: Role, spec: &ModelSpec) -> Wanted {
    let parts = &[(Part::Whole, u64::from(spec.vocab_size))];
    matrix(role, None, parts, u64::from(spec.hidden_size))
}

fn layer_matrices(spec: &ModelSpec, layer: &LayerSpec, index: u32) -> [Wanted; 4] {
    let hidden = u64::from(spec.hidden_size);
    let (q, kv) = (u64::from(layer.q_width()), u64::from(layer.kv_width()));
    let ffn = u64::from(layer.intermediate_size);
    let qkv = [(Part::Q, q), (Part::K, kv), (Part::V, kv)];
    let gate_up = [(Part::Gate, ffn), (Part::Up, ffn)];
    let whole = [(Part::Whole, hidden)];
    let head_rows = Some(u64::from(layer.head_dim));
    let layer = Some(index);
    [
        Wanted { head_rows, ..matrix(Role::AttnQkv, layer, &qkv, hidden) },
        matrix(Role::AttnOut, layer, &whole, q),
        Wanted { alternate: true, ..matrix(Role::FfnGateUp, layer, &gate_up, hidden) },
        matrix(Role::FfnDown, layer, &whole, ffn),
    ]
}

fn layer_vectors(spec: &ModelSpec, layer: &LayerSpec, index: u32) -> Vec<Wanted> {
    let at = Some(index);
    let whole = |name, len: u32| vector(name, at, &[(Part::Whole, u64::from(len))], false);
    let mut vectors =
        vec![whole(Vector::AttnNorm, spec.hidden_size), whole(Vector::FfnNorm, spec.hidden_size)];
    if layer.qk_norm {
        vectors.push(whole(Vector::QNorm, layer.head_dim));
        vectors.push(whole(Vector::KNorm, layer.head_dim));
    }
    if layer.qkv_bias {
        let (q, kv) = (u64::from(layer.q_width()), u64::from(layer.kv_width()));
        let parts = [(Part::Q, q), (Part::K, kv), (Part::V, kv)];
        let head_rows = Some(u64::from(layer.head_dim));
        vectors.push(Wanted { head_rows, ..vector(Vector::AttnQkvBias, at, &parts, false) });
    }
    if layer.attn_out_bias {
        vectors.push(whole(Vector::AttnOutBias, spec.hidden_size));
    }
    if layer.mlp_bias {
        let ffn = u64::from(layer.intermediate_size);
        let parts = [(Part::Gate, ffn), (Part::Up, ffn)];
        vectors.push(vector(Vector::FfnGateUpBias, at, &parts, true));
        vectors.push(whole(Vector::FfnDownBias, spec.hidden_size));
    }
    vectors
}

fn matrix(role: Role, layer: Option<u32>, parts: &[(Part, u64)], cols: u64) -> Wanted {
    Wanted {
        home: Home::Matrix(role),
        layer,
        parts: parts.to_vec(),
        alternate: false,
        cols: Some(cols),
        head_rows: None,
    }
}

fn vector(name: Vector, layer: Option<u32>, parts: &[(Part, u64)], alternate: bool) -> Wanted {
    Wanted {
        home: Home::Vector(name),
        layer,
        parts: parts.to_vec(),
        alternate,
        cols: None,
        head_rows: None,
    }
}

impl Wanted {
    fn rows(&self) -> u64 {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    fn rows_of(&self, part: Part) -> u64 {
        let found = self.parts.iter().find(|(name, _)| *name == part);
        found.map_or(0, |(_, rows)| *rows)
    }

    /// Which numbers of the config the shape of a tensor follows from.
    fn why(&self, tensor: &TensorName) -> &'static str {
        match (self.home, tensor.parts) {
            (Home::Matrix(Role::Embed | Role::Head), _) => "vocab_size, hidden_size",
            (Home::Matrix(Role::AttnQkv), [Part::Q]) => {
                "num_attention_heads * head_dim, hidden_size"
            }
            (Home::Matrix(Role::AttnQkv), [_]) => "num_key_value_heads * head_dim, hidden_size",
            (Home::Matrix(Role::AttnQkv), _) => {
                "(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size"
            }
            (Home::Matrix(Role::AttnOut), _) => "hidden_size, num_attention_heads * head_dim",
            (Home::Matrix(Role::FfnGateUp), [_]) => "intermediate_size, hidden_size",
            (Home::Matrix(Role::FfnGateUp), _) => "2 * intermediate_size, hidden_size",
            (Home::Matrix(Role::FfnDown), _) => "hidden_size, intermediate_size",
            (Home::Vector(Vector::QNorm | Vector::KNorm), _) => "head_dim",
            (Home::Vector(Vector::AttnQkvBias), [Part::Q]) => "num_attention_heads * head_dim",
            (Home::Vector(Vector::AttnQkvBias), _) => "num_key_value_heads * head_dim",
            (Home::Vector(Vector::FfnGateUpBias), _) => "intermediate_size",
            (Home::Vector(_), _) => "hidden_size",
            (Home::Matrix(_), _) => "its dimensions",
        }
    }
}

/// Source tensors by their meaning, and which of them were used.
struct Found<'a> {
    convention: Convention<'a>,
    tensors: &'a [SourceTensor<'a>],
    by_meaning: BTreeMap<(Option<u32>, Home, Part), (usize, &'static TensorName)>,
    used: Vec<bool>,
    ignored: Vec<(usize, &'static str)>,
    notes: Vec<String>,
}

impl<'a> Found<'a> {
    fn new(
        convention: Convention<'a>,
        spec: &ModelSpec,
        tensors: &'a [SourceTensor<'a>],
    ) -> Result<Self, Error> {
        let mut found = Found {
            convention,
            tensors,
            by_meaning: BTreeMap::new(),
            used: vec![false; tensors.len()],
            ignored: Vec::new(),
            notes: Vec::new(),
        };
        for (index, tensor) in tensors.iter().enumerate() {
            let (name, layer) = match convention.names.place(tensor.name) {
                None => continue, // reported with all others in `refuse_unused`
                Some(Place::Ignored(reason)) => {
                    found.ignore(index, reason);
                    continue;
                }
                Some(Place::Tensor(name, layer)) => (name, layer),
            };
            if let Some(layer) = layer.filter(|&layer| layer as usize >= spec.layers.len()) {
                return Err(Error::LayerBeyond {
                    tensor: tensor.name.to_owned(),
                    layer,
                    layers: spec.layers.len(),
                });
            }
            for &part in name.parts {
                let key = (layer, name.home, part);
                if let Some((other, _)) = found.by_meaning.insert(key, (index, name)) {
                    return Err(Error::TwoNames {
                        first: found.name(other),
                        second: tensor.name.to_owned(),
                    });
                }
            }
        }
        Ok(found)
    }

    fn name(&self, tensor: usize) -> String {
        self.tensors.get(tensor).map(|tensor| tensor.name.to_owned()).unwrap_or_default()
    }

    fn ignore(&mut self, tensor: usize, reason: &'static str) {
        self.ignored.push((tensor, reason));
        if let Some(used) = self.used.get_mut(tensor) {
            *used = true;
        }
    }

    /// The tensors present decide about tying, where they contradict the config.
    fn decide_head(&mut self, spec: &mut ModelSpec, same: &dyn Fn(usize, usize) -> bool) {
        let of = |role| self.by_meaning.get(&(None, Home::Matrix(role), Part::Whole));
        let (Some(&(embed, _)), Some(&(head, _))) = (of(Role::Embed), of(Role::Head)) else {
            return;
        };
        if !spec.tie_word_embeddings {
            return;
        }
        let alike = self.tensors.get(embed).zip(self.tensors.get(head));
        let alike = alike.is_some_and(|(a, b)| a.shape == b.shape && a.dtype == b.dtype);
        if alike && same(embed, head) {
            self.ignore(head, "same as the embedding");
        } else {
            spec.tie_word_embeddings = false;
            self.notes.push(format!(
                "'{}' differs from the embedding and is used, although config.json says tie_word_embeddings: true",
                self.name(head)
            ));
        }
    }

    /// One group, or one for each run of members that are stored alike.
    fn matrix(&mut self, wanted: &Wanted) -> Result<Vec<Group>, Error> {
        let members = self.members(wanted, 0)?;
        let role = match wanted.home {
            Home::Matrix(role) => role,
            Home::Vector(_) => Role::Small,
        };
        let cols = wanted.cols.unwrap_or(1);
        let mut groups: Vec<(Coding, Vec<Member>)> = Vec::new();
        for member in members {
            let alike = |coding: &Coding| {
                coding.stored == member.coding.stored && coding.source == member.coding.source
            };
            match groups.last_mut() {
                Some((coding, run)) if alike(coding) => run.push(member),
                Some((_, run)) if wanted.alternate => return Err(self.mixed(role, run, member)),
                _ => groups.push((member.coding, vec![member])),
            }
        }
        let mut placed = Vec::with_capacity(groups.len());
        for (coding, mut members) in groups {
            let rows = members.iter().map(|member| member.rows).sum();
            let start = members.first().map_or(0, |member| member.first_row);
            members.iter_mut().for_each(|member| member.first_row -= start);
            let geometry = Geometry::encoded(coding.stored, rows, cols);
            let geometry = geometry.ok_or(Error::Geometry { role, rows, cols })?;
            placed.push(Group { role, layer: wanted.layer, geometry, members });
        }
        Ok(placed)
    }

    fn mixed(&self, role: Role, run: &[Member], second: Member) -> Error {
        let dtype = |tensor: usize| self.tensors.get(tensor).map_or("nothing", |found| found.dtype);
        let first = run.first().map_or(second.tensor, |member| member.tensor);
        Error::MixedDtypes {
            first: self.name(first),
            first_dtype: dtype(first),
            second: self.name(second.tensor),
            second_dtype: dtype(second.tensor),
            role,
        }
    }

    fn small(&mut self, layer: Option<u32>, wanted: &[Wanted]) -> Result<Group, Error> {
        let mut members = Vec::new();
        let mut vectors = Vec::new();
        for wanted in wanted {
            if let Home::Vector(vector) = wanted.home {
                members.extend(self.members(wanted, vectors.len() as u32)?);
                vectors.push((vector, wanted.rows()));
            }
        }
        let role = Role::Small;
        let rows = vectors.iter().map(|(_, len)| len).sum();
        let cols = 1;
        let geometry = Geometry::small(&vectors).ok_or(Error::Geometry { role, rows, cols })?;
        Ok(Group { role, layer, geometry, members })
    }

    /// The rows that fill a group, or one vector of it.
    fn members(&mut self, wanted: &Wanted, plane: u32) -> Result<Vec<Member>, Error> {
        let mut members = Vec::with_capacity(wanted.parts.len());
        let mut before = 0;
        for (nth, &(part, rows)) in wanted.parts.iter().enumerate() {
            let key = (wanted.layer, wanted.home, part);
            let Some(&(tensor, name)) = self.by_meaning.get(&key) else {
                return Err(self.missing(wanted, part));
            };
            self.check_shape(tensor, name, wanted)?;
            if let Some(used) = self.used.get_mut(tensor) {
                *used = true;
            }
            let earlier = name.parts.iter().take_while(|&&other| other != part);
            members.push(Member {
                tensor,
                plane,
                source_row: earlier.map(|&part| wanted.rows_of(part)).sum(),
                rows,
                first_row: if wanted.alternate { nth as u64 } else { before },
                row_step: if wanted.alternate { wanted.parts.len() as u64 } else { 1 },
                coding: self.coding(tensor, part, wanted)?,
            });
            before += rows;
        }
        Ok(members)
    }

    fn missing(&self, wanted: &Wanted, part: Part) -> Error {
        let tensor = self.convention.names.usual_name(wanted.home, part, wanted.layer);
        match wanted.home {
            Home::Matrix(Role::Head) => Error::MissingHead { tensor },
            Home::Matrix(_) | Home::Vector(_) => Error::MissingTensor { tensor },
        }
    }

    fn check_shape(&self, tensor: usize, name: &TensorName, wanted: &Wanted) -> Result<(), Error> {
        let rows = name.parts.iter().map(|&part| wanted.rows_of(part)).sum();
        let expected: Vec<u64> = std::iter::once(rows).chain(wanted.cols).collect();
        match self.tensors.get(tensor) {
            Some(tensor) if tensor.shape != expected => Err(Error::Shape {
                tensor: tensor.name.to_owned(),
                found: tensor.shape.to_vec(),
                expected,
                why: wanted.why(name),
            }),
            _ => Ok(()),
        }
    }

    /// What happens to the rows of a tensor.
    fn coding(&self, tensor: usize, part: Part, wanted: &Wanted) -> Result<Coding, Error> {
        let vector = wanted.cols.is_none();
        let found = self.tensors.get(tensor).and_then(|found| found.tensor_type);
        let known = found.filter(|found| !vector || found.block_weights() == 1);
        let encoded = known.and_then(|found| Some((found, found.encoding()?)));
        let Some((source, encoding)) = encoded else {
            let dtype = self.tensors.get(tensor).map_or("nothing", |tensor| tensor.dtype);
            return Err(Error::Dtype { tensor: self.name(tensor), dtype });
        };
        let in_blocks = source.block_weights() > 1;
        let (stored, listed) = match self.convention.dequantize {
            Some(_) if in_blocks => (Encoding::plain(Format::BF16), TensorType::BF16),
            Some(is_bf16) if vector && source == TensorType::F32 && is_bf16(tensor) => {
                (encoding, TensorType::BF16)
            }
            // INT8 keeps values, not bytes.
            None if encoding.format == Format::Int8 => (encoding, TensorType::F32),
            _ => (encoding, source),
        };
        let interleaved = self.convention.interleaved && matches!(part, Part::Q | Part::K);
        Ok(Coding {
            source,
            stored,
            listed,
            cols: wanted.cols.unwrap_or(1),
            vector,
            head_rows: wanted.head_rows.filter(|_| interleaved),
            reordered: self.convention.dequantize.is_some(),
        })
    }

    /// The names that tensors of a folder would have, if that is what they are to be.
    fn renamed(&self) -> BTreeMap<usize, String> {
        let names = &self.convention.row.names;
        let renamed = self.by_meaning.iter().map(|(&(layer, home, part), &(tensor, _))| {
            (tensor, names.usual_name(home, part, layer))
        });
        self.convention.dequantize.map(|_| renamed.collect()).unwrap_or_default()
    }

    /// Every tensor must have been used or ignored with a reason.
    fn refuse_unused(&self) -> Result<(), Error> {
        let unused = self.tensors.iter().zip(&self.used);
        let mut names = unused.filter(|(_, used)| !**used).map(|(tensor, _)| tensor.name);
        let first: Vec<String> = names.by_ref().take(3).map(|name| format!("'{name}'")).collect();
        if first.is_empty() {
            return Ok(());
        }
        Err(Error::UnexpectedTensors {
            count: first.len() + names.count(),
            model_type: self.convention.row.model_type,
            names: first,
        })
    }
}
