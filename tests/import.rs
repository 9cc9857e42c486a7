//! The importer from outside: reference checkpoints become pages and back, and folders that lie are refused.

#[path = "import/config.rs"]
mod config;
#[path = "import/convert.rs"]
mod convert;
#[path = "import/folder.rs"]
mod folder;
#[path = "import/gguf.rs"]
mod gguf;
#[path = "import/gguf_file.rs"]
mod gguf_file;
#[path = "import/gguf_tokenizer.rs"]
mod gguf_tokenizer;
#[path = "import/goldens.rs"]
mod goldens;
#[path = "import/synthetic.rs"]
mod synthetic;
#[path = "import/v0.rs"]
mod v0;
#[path = "import/weights.rs"]
mod weights;
