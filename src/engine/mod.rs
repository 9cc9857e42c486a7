//! A model opened on a device: weights uploaded, buffers allocated, programs compiled as they are needed.
//!
//! [`Engine::builder`] opens one, [`session`] holds the state of a sequence and takes its steps, `load`
//! moves pages into buffers. The engine knows token ids only; text is the business of `generate`.

mod load;
pub mod session;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backend::{
    self, Backend, Buffer, DeviceInfo, LimitChoice, MemoryUse, OpenOptions, ProgramId, Slice, Tier,
};
use crate::format::{NONE, Pages};
use crate::kv::BlockPool;
use crate::model::ModelSpec;
use crate::plan::{KvFormat, Plan, PlanOptions, Purposes};
use crate::program::{BufferName, LogitRows, Program, StepShape, decoder};

pub use session::{LogitsChunk, Session};

/// Rows a step program may have; a prefill chunk takes the smallest that holds it.
const ROW_BUCKETS: [u32; 4] = [1, 32, 128, 512];
/// Context when none is asked for, unless the model was trained for less.
pub const DEFAULT_CONTEXT: u32 = 8192;
/// Logits of many rows are computed in chunks of at most this.
const MAX_LOGITS_BYTES: u64 = 64 << 20;
/// "None" in the status and end-token tables.
const EMPTY: u32 = NONE;

/// A model on a device. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    spec: ModelSpec,
    plan: Plan,
    profile: String,
    outputs: Outputs,
    load_seconds: f64,
    bindings: BTreeMap<BufferName, Slice>,
    state: Mutex<State>,
}

struct State {
    programs: HashMap<StepShape, ProgramId>,
    pool: BlockPool,
    free_slots: Vec<u32>,
}

/// What a model is opened for; it decides which buffers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outputs {
    /// Drawn ids: one row of logits at a time.
    #[default]
    Ids,
    /// Logits of every position, and the residual after every layer where `hidden`.
    Logits {
        /// Whether hidden states are kept.
        hidden: bool,
    },
}

/// What can go wrong once a model is understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A context beyond what the model was trained for.
    #[error("a context of {asked} tokens exceeds the {trained} tokens the model was trained for")]
    ContextBeyondTraining {
        /// Tokens asked for.
        asked: u32,
        /// Tokens trained for.
        trained: u32,
    },
    /// The prompt and what was generated do not fit.
    #[error("{needed} tokens do not fit into a context of {context}")]
    ContextFull {
        /// Tokens needed.
        needed: u64,
        /// Tokens there is room for.
        context: u32,
    },
    /// The model needs more memory than it may use.
    #[error("the model needs {needed} bytes (weights {weights}, KV cache {kv}, activations {activations}), but the budget is {budget}",
        needed = purposes.total(), weights = purposes.weights, kv = purposes.kv,
        activations = purposes.activations)]
    Budget {
        /// Bytes by purpose.
        purposes: Purposes,
        /// Bytes allowed.
        budget: u64,
        /// The context these bytes are for.
        context: u32,
    },
    /// A token id the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Ids there are.
        vocab: u32,
    },
    /// Nothing to compute from.
    #[error("there are no tokens to start from")]
    NoTokens,
    /// Every sequence the engine was opened for is in use.
    #[error("all {sequences} sequences of the engine are in use")]
    NoSequence {
        /// Sequences there are.
        sequences: u32,
    },
    /// A number was not finite.
    #[error("{} at position {position}", match layer {
        Some(layer) => format!("layer {layer} produced a number that is not finite"),
        None => "the logits are not finite".to_owned(),
    })]
    NotFinite {
        /// First such layer; none when only the logits were.
        layer: Option<u32>,
        /// Position being computed.
        position: u32,
    },
    /// The user stopped it.
    #[error("interrupted")]
    Interrupted,
    /// A mask that allows nothing.
    #[error("the mask allows no token")]
    EmptyMask,
    /// More biases than a sampler holds.
    #[error("{found} logit biases were given, at most {max} are possible")]
    TooManyBiases {
        /// Given.
        found: usize,
        /// Possible.
        max: u32,
    },
    /// The device did not answer in time.
    #[error("the device did not answer within {seconds} s")]
    Timeout {
        /// Seconds waited.
        seconds: u64,
    },
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::ContextBeyondTraining { trained, .. } => {
                Some(format!("use --context {trained} or less"))
            }
            Error::ContextFull { needed, .. } => {
                Some(format!("use --context {needed} or more, or a shorter prompt"))
            }
            Error::Budget { purposes, budget, context } => {
                let fixed = purposes.weights + purposes.activations;
                let per_token = (purposes.kv / u64::from((*context).max(1))).max(1);
                let room = budget.saturating_sub(fixed) / per_token / 32 * 32;
                Some(if room >= 32 {
                    format!("--context {room} would fit")
                } else {
                    let least = fixed + 256 * per_token;
                    format!("--budget {}MiB holds it with --context 256", least.div_ceil(1 << 20))
                })
            }
            Error::NotFinite { .. } => {
                Some("the weights may be damaged; 'thin verify' checks an archive".into())
            }
            Error::Token { .. }
            | Error::NoTokens
            | Error::NoSequence { .. }
            | Error::Interrupted
            | Error::EmptyMask
            | Error::TooManyBiases { .. }
            | Error::Timeout { .. } => None,
        }
    }
}

/// How to open a model.
pub struct Builder {
    pages: Arc<dyn Pages>,
    device: OpenOptions,
    backend: Option<Arc<dyn Backend>>,
    context: Option<u32>,
    kv_format: KvFormat,
    sequences: u32,
    budget: Option<u64>,
    outputs: Outputs,
    end_ids: Vec<u32>,
    progress: Option<Progress>,
}

/// Called with bytes loaded and bytes in all, from several threads.
type Progress = Box<dyn Fn(u64, u64) + Send + Sync>;

impl Engine {
    /// Starts opening a model.
    #[must_use]
    pub fn builder(pages: Arc<dyn Pages>) -> Builder {
        Builder {
            pages,
            device: OpenOptions::default(),
            backend: None,
            context: None,
            kv_format: KvFormat::BF16,
            sequences: 1,
            budget: None,
            outputs: Outputs::Ids,
            end_ids: Vec::new(),
            progress: None,
        }
    }

    /// A new, empty sequence.
    ///
    /// **Errors**: [`Error::NoSequence`] where all are in use.
    pub fn session(&self) -> crate::Result<Session> {
        Session::new(self.clone())
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        self.0.backend.info()
    }

    /// The model.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.0.spec
    }

    /// Where everything is.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Positions a sequence may reach.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.0.plan.options.context
    }

    /// The precision profile the weights are in.
    #[must_use]
    pub fn profile(&self) -> &str {
        &self.0.profile
    }

    /// What the device holds, and held at most.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        self.0.backend.memory()
    }

    /// KV blocks that no sequence holds.
    #[must_use]
    pub fn free_kv_blocks(&self) -> u32 {
        self.state().pool.free()
    }

    /// Seconds it took to open.
    #[must_use]
    pub fn load_seconds(&self) -> f64 {
        self.0.load_seconds
    }

    /// Device time by op since the last call.
    #[must_use]
    pub fn timings(&self) -> Vec<backend::OpTime> {
        self.0.backend.timings()
    }

    /// Bytes of weights one decode step reads.
    #[must_use]
    pub fn bytes_per_token(&self) -> u64 {
        self.program(decode_shape(self.context())).weight_bytes()
    }

    /// The program of a step shape.
    #[must_use]
    pub fn program(&self, shape: StepShape) -> Program {
        decoder::build(&self.0.spec, &self.0.plan, shape)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves whole entries, not broken ones.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slice(&self, name: BufferName) -> Slice {
        *self.0.bindings.get(&name).expect("every table is allocated when the engine is opened")
    }

    /// The compiled program of a shape, compiled at first use.
    fn compiled(&self, shape: StepShape) -> crate::Result<ProgramId> {
        let mut state = self.state();
        if let Some(&id) = state.programs.get(&shape) {
            return Ok(id);
        }
        let program = self.program(shape);
        tracing::debug!(name = %program.name, ops = program.ops.len(), "program compiled");
        let id = self.0.backend.compile(&program, &self.0.bindings)?;
        state.programs.insert(shape, id);
        Ok(id)
    }
}

impl Builder {
    /// Which device: `auto`, or a name that `backend::open` knows.
    #[must_use]
    pub fn device(mut self, name: &str) -> Self {
        self.device.device = name.to_owned();
        self
    }

    /// Limits to ask the adapter for.
    #[must_use]
    pub fn limits(mut self, limits: LimitChoice) -> Self {
        self.device.limits = limits;
        self
    }

    /// Whether optional features of the adapter may be used.
    #[must_use]
    pub fn features(mut self, features: bool) -> Self {
        self.device.features = features;
        self
    }

    /// Whether shaders keep their run-time checks.
    #[must_use]
    pub fn checked(mut self, checked: bool) -> Self {
        self.device.checked = checked;
        self
    }

    /// A device that is open already; it may hold several engines, and is asked instead of
    /// [`Builder::device`].
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Positions a sequence may reach; by default what the model was trained for, at most 8,192.
    #[must_use]
    pub fn context(mut self, tokens: Option<u32>) -> Self {
        self.context = tokens;
        self
    }

    /// Number format of the KV cache.
    #[must_use]
    pub fn kv_format(mut self, format: KvFormat) -> Self {
        self.kv_format = format;
        self
    }

    /// Sequences that may be open at once.
    #[must_use]
    pub fn sequences(mut self, count: u32) -> Self {
        self.sequences = count;
        self
    }

    /// A cap on what the device holds, in bytes.
    #[must_use]
    pub fn budget(mut self, bytes: Option<u64>) -> Self {
        self.budget = bytes;
        self
    }

    /// What the model is opened for.
    #[must_use]
    pub fn outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Tokens that end a text, beside those the model description names.
    #[must_use]
    pub fn end_ids(mut self, ids: &[u32]) -> Self {
        self.end_ids = ids.to_vec();
        self
    }

    /// Called with bytes loaded and bytes in all, from several threads.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Works out what is needed without loading anything.
    ///
    /// **Errors**: the description or the pages do not hold together, or the context is too long.
    pub fn plan(&self) -> crate::Result<(ModelSpec, Plan, Purposes)> {
        let manifest = self.pages.manifest();
        let spec = ModelSpec::from_json(&manifest.spec)?;
        let trained = spec.longest_context();
        let context = self.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
        if context > trained {
            return Err(Error::ContextBeyondTraining { asked: context, trained }.into());
        }
        if context == 0 {
            return Err(Error::NoTokens.into());
        }
        let options =
            PlanOptions { context, sequences: self.sequences.max(1), kv_format: self.kv_format };
        let plan = Plan::new(manifest, self.pages.pages(), &spec, options)?;
        let mut purposes = plan.by_purpose();
        purposes.activations = buffers(&spec, &plan, self.outputs)
            .into_iter()
            .filter(|(name, _)| !matches!(name, BufferName::Weight { .. } | BufferName::Kv { .. }))
            .map(|(_, bytes)| bytes)
            .sum();
        Ok((spec, plan, purposes))
    }

    /// Loads the model.
    ///
    /// **Errors**: as [`Builder::plan`]; [`Error::Budget`]; the device refuses; a page is damaged.
    pub fn open(self) -> crate::Result<Engine> {
        let start = Instant::now();
        let (spec, mut plan, purposes) = self.plan()?;
        if let Some(budget) = self.budget.filter(|&budget| purposes.total() > budget) {
            let context = plan.options.context;
            return Err(Error::Budget { purposes, budget, context }.into());
        }
        let backend = match &self.backend {
            Some(backend) => Arc::clone(backend),
            None => backend::open_with(&self.device)?,
        };
        plan.split(backend.info().max_binding_bytes);
        tracing::info!(
            device = %backend.info().name,
            weights = purposes.weights,
            kv = purposes.kv,
            activations = purposes.activations,
            context = plan.options.context,
            "plan chosen"
        );
        let bindings = load::weights(&*backend, &*self.pages, &plan, self.progress.as_deref())?;
        let pool = BlockPool::new(plan.kv.first().map_or(0, |kv| kv.blocks));
        let free_slots = (0..plan.options.sequences).rev().collect();
        let mut end_ids: Vec<u32> =
            spec.eos_token_ids.iter().chain(&self.end_ids).copied().collect();
        end_ids.sort_unstable();
        end_ids.dedup();
        // Whatever fails from here on, the engine's drop gives back what it holds.
        let mut inner = Inner {
            backend,
            spec,
            plan,
            profile: self.pages.manifest().provenance.profile.clone(),
            outputs: self.outputs,
            load_seconds: 0.0,
            bindings,
            state: Mutex::new(State { programs: HashMap::new(), pool, free_slots }),
        };
        for (name, bytes) in buffers(&inner.spec, &inner.plan, self.outputs) {
            if let std::collections::btree_map::Entry::Vacant(entry) = inner.bindings.entry(name) {
                let buffer = inner.backend.alloc(bytes, Tier::Device, &format!("{name:?}"))?;
                entry.insert(Slice { buffer, offset: 0, len: bytes });
            }
        }
        inner.load_seconds = start.elapsed().as_secs_f64();
        let engine = Engine(Arc::new(inner));
        load::tables(&engine, &end_ids)?;
        Ok(engine)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, program) in state.programs.drain() {
            self.backend.release(program);
        }
        let buffers: std::collections::BTreeSet<Buffer> =
            self.bindings.values().map(|slice| slice.buffer).collect();
        for buffer in buffers {
            self.backend.free(buffer);
        }
    }
}

/// The step of one token.
fn decode_shape(kv_capacity: u32) -> StepShape {
    StepShape { rows: 1, kv_capacity, logits: LogitRows::All, sample: true, hidden: false }
}

/// The largest row bucket steps will use.
fn largest_bucket(spec: &ModelSpec, context: u32, outputs: Outputs) -> u32 {
    let row = u64::from(spec.vocab_size) * 4;
    let fits = |rows: u32| match outputs {
        Outputs::Ids => true,
        Outputs::Logits { .. } => u64::from(rows) * row <= MAX_LOGITS_BYTES,
    };
    let useful =
        ROW_BUCKETS.iter().position(|&rows| rows >= context).unwrap_or(ROW_BUCKETS.len() - 1);
    ROW_BUCKETS[..=useful].iter().rev().copied().find(|&rows| fits(rows)).unwrap_or(1)
}

/// Every buffer the programs of an engine bind, at its largest.
fn buffers(spec: &ModelSpec, plan: &Plan, outputs: Outputs) -> BTreeMap<BufferName, u64> {
    let kv_capacity = plan.options.context;
    let rows = largest_bucket(spec, kv_capacity, outputs);
    let prefill = StepShape { rows, logits: LogitRows::One, ..decode_shape(kv_capacity) };
    let mut shapes = vec![decode_shape(kv_capacity), prefill];
    if let Outputs::Logits { hidden } = outputs {
        shapes.push(StepShape { logits: LogitRows::All, sample: false, hidden, ..prefill });
    }
    let mut largest = BTreeMap::new();
    for shape in shapes {
        for buffer in decoder::build(spec, plan, shape).buffers {
            let bytes = largest.entry(buffer.name).or_insert(0);
            *bytes = buffer.bytes.max(*bytes);
        }
    }
    largest
}
