//! Streams a text: `cargo run --release --example generate -- MODEL "Once upon a time"`.

use std::io::Write;
use std::path::Path;

use thintensor::chat::channels::Event;
use thintensor::generate::{Model, Options};
use thintensor::import;

fn main() -> thintensor::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: generate MODEL PROMPT");
    let prompt = arguments.next().unwrap_or_else(|| "Once upon a time".into());

    let pages = import::open(Path::new(&path))?.into();
    let model = Model::open(pages, |builder| builder.device("auto"))?;
    let prompt = model.tokenizer()?.encode_prompt(&prompt)?.ids;
    let mut session = model.engine.session()?;
    let options = Options { max_tokens: Some(200), ..Options::default() };
    let mut print = |event: &Event| {
        if let Event::Content(text) = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
    };
    model.generate(&mut session, &prompt, &options, &mut print, &|| false)?;
    println!();
    Ok(())
}
