//! The importer from outside: reference checkpoints become pages and back, and folders that lie are refused.

#[path = "import/folder.rs"]
mod folder;
#[path = "import/goldens.rs"]
mod goldens;
