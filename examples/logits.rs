//! The five likeliest next tokens of a list of ids: `cargo run --example logits -- MODEL 1 2 3`.

use std::path::Path;

use thintensor::engine::Outputs;
use thintensor::plan::KvFormat;
use thintensor::{Engine, import};

fn main() -> thintensor::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: logits MODEL ID...");
    let ids: Vec<u32> = arguments.map(|id| id.parse().expect("an id is a number")).collect();

    let pages = import::open(Path::new(&path))?.into();
    let outputs = Outputs::Logits { hidden: false };
    let engine = Engine::builder(pages).kv_format(KvFormat::F32).outputs(outputs).open()?;
    let vocab = engine.spec().vocab_size as usize;
    let mut last = Vec::new();
    engine.session()?.logits(&ids, &mut |chunk| {
        last = chunk.logits[chunk.logits.len() - vocab..].to_vec();
        Ok(())
    })?;
    let mut order: Vec<usize> = (0..vocab).collect();
    order.sort_by(|&a, &b| last[b].total_cmp(&last[a]));
    for id in order.into_iter().take(5) {
        println!("{id}\t{}", last[id]);
    }
    Ok(())
}
