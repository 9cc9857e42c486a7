//! Which rows of which source tensor go where: the pure half of packing.
//!
//! The model's description says which groups there must be and how large; the architecture's row says which
//! names fill them. Every tensor must find its place and every place its tensor; the shapes must be those
//! that the config implies. Start at [`place`].

use std::collections::BTreeMap;

use super::Error;
use super::safetensors::Dtype;
use crate::format::manifest::Piece;
use crate::format::{Geometry, Role, Vector};
use crate::model::arch::{Architecture, Home, Part, Place, TensorName};
use crate::model::{LayerSpec, ModelSpec};
use crate::quant::Format;

/// A tensor as its file describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceTensor<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [u64],
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
}

/// Finds the place of every tensor.
///
/// `same` compares the bytes of two tensors. The spec's `tie_word_embeddings` becomes false where the files
/// nevertheless have an output projection of their own.
pub(super) fn place(
    row: &'static Architecture,
    spec: &mut ModelSpec,
    tensors: &[SourceTensor<'_>],
    same: &dyn Fn(usize, usize) -> bool,
) -> Result<Placed, Error> {
    let mut found = Found::new(row, spec, tensors)?;
    found.decide_head(spec, same);
    let mut groups = vec![found.matrix(&head_or_embed(Role::Embed, spec))?];
    for (index, layer) in spec.layers.iter().enumerate() {
        let index = index as u32;
        groups.push(found.small(Some(index), &layer_vectors(spec, layer, index))?);
        for wanted in layer_matrices(spec, layer, index) {
            groups.push(found.matrix(&wanted)?);
        }
    }
    let hidden = u64::from(spec.hidden_size);
    let norm = vector(Vector::FinalNorm, None, &[(Part::Whole, hidden)], false);
    groups.push(found.small(None, &[norm])?);
    if !spec.tie_word_embeddings {
        groups.push(found.matrix(&head_or_embed(Role::Head, spec))?);
    }
    found.refuse_unused()?;
    Ok(Placed { groups, ignored: found.ignored, notes: found.notes })
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
    let layer = Some(index);
    [
        matrix(Role::AttnQkv, layer, &qkv, hidden),
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
        vectors.push(vector(Vector::AttnQkvBias, at, &parts, false));
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
    }
}

fn vector(name: Vector, layer: Option<u32>, parts: &[(Part, u64)], alternate: bool) -> Wanted {
    Wanted { home: Home::Vector(name), layer, parts: parts.to_vec(), alternate, cols: None }
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
    row: &'static Architecture,
    tensors: &'a [SourceTensor<'a>],
    by_meaning: BTreeMap<(Option<u32>, Home, Part), (usize, &'static TensorName)>,
    used: Vec<bool>,
    ignored: Vec<(usize, &'static str)>,
    notes: Vec<String>,
}

impl<'a> Found<'a> {
    fn new(
        row: &'static Architecture,
        spec: &ModelSpec,
        tensors: &'a [SourceTensor<'a>],
    ) -> Result<Self, Error> {
        let mut found = Found {
            row,
            tensors,
            by_meaning: BTreeMap::new(),
            used: vec![false; tensors.len()],
            ignored: Vec::new(),
            notes: Vec::new(),
        };
        for (index, tensor) in tensors.iter().enumerate() {
            let (name, layer) = match row.place(tensor.name) {
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

    fn matrix(&mut self, wanted: &Wanted) -> Result<Group, Error> {
        let members = self.members(wanted, 0)?;
        let role = match wanted.home {
            Home::Matrix(role) => role,
            Home::Vector(_) => Role::Small,
        };
        let format = self.common_format(role, &members)?;
        let (rows, cols) = (wanted.rows(), wanted.cols.unwrap_or(1));
        let geometry =
            Geometry::matrix(format, rows, cols).ok_or(Error::Geometry { role, rows, cols })?;
        Ok(Group { role, layer: wanted.layer, geometry, members })
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
        for member in &members {
            self.format(member.tensor)?;
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
            });
            before += rows;
        }
        Ok(members)
    }

    fn missing(&self, wanted: &Wanted, part: Part) -> Error {
        let tensor = self.row.usual_name(wanted.home, part, wanted.layer);
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

    fn format(&self, tensor: usize) -> Result<(Format, Dtype), Error> {
        let found = self.tensors.get(tensor);
        let format = found.and_then(|tensor| Some((tensor.dtype.format()?, tensor.dtype)));
        format.ok_or_else(|| Error::Dtype {
            tensor: self.name(tensor),
            dtype: found.map_or("nothing", |tensor| tensor.dtype.name()),
        })
    }

    fn common_format(&self, role: Role, members: &[Member]) -> Result<Format, Error> {
        let mut common: Option<(Format, Dtype, usize)> = None;
        for member in members {
            let (format, dtype) = self.format(member.tensor)?;
            match common {
                Some((first, first_dtype, tensor)) if first != format => {
                    return Err(Error::MixedDtypes {
                        first: self.name(tensor),
                        first_dtype: first_dtype.name(),
                        second: self.name(member.tensor),
                        second_dtype: dtype.name(),
                        role,
                    });
                }
                Some(_) => {}
                None => common = Some((format, dtype, member.tensor)),
            }
        }
        Ok(common.map_or(Format::BF16, |(format, _, _)| format))
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
            model_type: self.row.model_type,
            names: first,
        })
    }
}
