//! The engine on a tiny model in memory, through its public face: sequences, rewinding, chunks of a prefill,
//! drawing, refusals, memory. `tiny` is the model; no file is read and no text involved.

#[path = "engine/draws.rs"]
mod draws;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/refusals.rs"]
mod refusals;
#[path = "engine/sequences.rs"]
mod sequences;
mod tiny;

use std::sync::Arc;

use thintensor::engine::{Builder, Engine, Outputs, Session};
use thintensor::model::ModelSpec;
use thintensor::program::IdRecord;
use thintensor::quant::Format;

use tiny::Tiny;

/// The models most tests run on: every bias and norm, windows, a tied head, each in another format.
fn models() -> [(&'static str, Tiny); 4] {
    [
        ("llama", Tiny::new(&tiny::llama(), Format::F32, 1)),
        ("tied", Tiny::new(&tiny::tied(), Format::F16, 2)),
        ("biased", Tiny::new(&tiny::biases_and_qk_norm(), Format::BF16, 3)),
        ("windowed", Tiny::new(&tiny::windowed(8), Format::BF16, 4)),
    ]
}

fn open(model: Tiny, configure: impl FnOnce(Builder) -> Builder) -> Engine {
    configure(Engine::builder(Arc::new(model)).device("cpu")).open().expect("a small model")
}

/// An engine of one sequence for a model with weights of a format.
fn engine(spec: &ModelSpec, format: Format) -> Engine {
    open(Tiny::new(spec, format, 1), |builder| builder)
}

fn session(engine: &Engine) -> Session {
    engine.session().expect("a free sequence")
}

fn feed(session: &mut Session, tokens: &[u32]) -> IdRecord {
    session.feed(tokens, &|| false).expect("tokens that fit")
}

/// Draws `count` more ids.
fn draw(session: &mut Session, count: usize) -> Vec<IdRecord> {
    (0..count).map(|_| session.next().expect("room for more")).collect()
}

/// What a record says, its log-probability as bits.
fn bits(record: &IdRecord) -> (u32, u32, u32) {
    (record.id, record.logprob.to_bits(), record.position)
}

fn all_bits(records: &[IdRecord]) -> Vec<(u32, u32, u32)> {
    records.iter().map(bits).collect()
}

/// Logits of every token of `chunks`, fed chunk by chunk to a new sequence.
fn logits(engine: &Engine, chunks: &[&[u32]]) -> Vec<f32> {
    let mut session = session(engine);
    let mut all = Vec::new();
    for chunk in chunks {
        session
            .logits(chunk, &mut |rows| {
                all.extend(rows.logits);
                Ok(())
            })
            .expect("tokens that fit");
    }
    all
}

fn for_logits(builder: Builder) -> Builder {
    builder.outputs(Outputs::Logits { hidden: false })
}

/// The first place where two rows of numbers differ in a bit.
fn first_difference(a: &[f32], b: &[f32]) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} numbers against {}", a.len(), b.len()));
    }
    let at = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())?;
    let vocab = tiny::VOCAB as usize;
    Some(format!("position {}, id {}: {} against {}", at / vocab, at % vocab, a[at], b[at]))
}
