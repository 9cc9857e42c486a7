//! WGSL put together from files: `#import name` (a file of `shaders/lib`), `#import SLOT` (upper case, chosen
//! by `lower`), and `override` lines baked to `const`, so that they may size arrays. Nothing else: no
//! conditions, no WGSL in Rust. With `THIN_SHADERS=folder` files are read from there, for development.

use std::borrow::Cow;

macro_rules! shader_files {
    // The one list of shader files; `tests/structure.rs` compares it with the folder.
    ($($name:literal),* $(,)?) => {
        /// Every shader file, by its path below `shaders/` without the ending.
        pub const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl"))),)*
        ];
    };
}

shader_files![
    "add",
    "add_bias",
    "advance",
    "attention",
    "attention_combine",
    "attention_split",
    "check_finite",
    "embed",
    "format/bf16",
    "format/f16",
    "format/f32",
    "format/kv_bf16",
    "format/kv_f16",
    "format/kv_f32",
    "gated_act",
    "keep",
    "kv_append",
    "lib/act_gelu_tanh",
    "lib/act_silu",
    "lib/angle",
    "lib/kv",
    "lib/philox",
    "lib/reduce_subgroup",
    "lib/reduce_workgroup",
    "lib/rows",
    "lib/sampler",
    "lib/step",
    "lib/weight",
    "matmul_mat",
    "matmul_vec",
    "rms_norm",
    "rms_norm_in_place",
    "rope",
    "sample_adjust",
    "sample_draw",
    "select_rows",
];

/// A shader before composition: its file, what fills its slots, and the values of its knobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// File name, which is the kernel's name.
    pub file: &'static str,
    /// Slot name and the file that fills it.
    pub slots: Vec<(&'static str, &'static str)>,
    /// Knob name and its value.
    pub knobs: Vec<(&'static str, u32)>,
}

/// Why a shader cannot be put together. All of these are mistakes in this crate, caught by its tests.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// No such file.
    #[error("there is no shader file '{name}'")]
    NoFile {
        /// The name asked for.
        name: String,
    },
    /// A slot that nothing fills.
    #[error("nothing fills slot {slot} of '{file}'")]
    EmptySlot {
        /// The slot.
        slot: String,
        /// The file.
        file: &'static str,
    },
    /// A value for a knob that the file does not have.
    #[error("'{file}' has no knob {knob}")]
    NoKnob {
        /// The knob.
        knob: &'static str,
        /// The file.
        file: &'static str,
    },
}

/// The WGSL of a variant.
///
/// **Errors**: [`ComposeError`].
pub fn compose(variant: &Variant) -> Result<String, ComposeError> {
    let mut composer =
        Composer { variant, text: String::new(), done: Vec::new(), baked: Vec::new() };
    composer.file(variant.file)?;
    let missing = variant.knobs.iter().find(|(knob, _)| !composer.baked.contains(knob));
    if let Some(&(knob, _)) = missing {
        return Err(ComposeError::NoKnob { knob, file: variant.file });
    }
    Ok(composer.text)
}

struct Composer<'a> {
    variant: &'a Variant,
    text: String,
    done: Vec<String>,
    baked: Vec<&'static str>,
}

impl Composer<'_> {
    fn file(&mut self, name: &str) -> Result<(), ComposeError> {
        if self.done.iter().any(|done| done == name) {
            return Ok(());
        }
        self.done.push(name.to_owned());
        let source = source(name).ok_or_else(|| ComposeError::NoFile { name: name.to_owned() })?;
        for line in source.lines() {
            if let Some(import) = line.strip_prefix("#import ") {
                let path = self.path(import.trim())?;
                self.file(&path)?;
            } else if let Some((name, kind, rest)) = knob(line) {
                let given = self.variant.knobs.iter().find(|(knob, _)| *knob == name);
                if let Some(&(knob, value)) = given {
                    self.baked.push(knob);
                    self.text.push_str(&format!("const {name}: {kind} = {value}u;\n"));
                } else {
                    self.text.push_str(&format!("const {name}: {kind} ={rest}\n"));
                }
            } else {
                self.text.push_str(line);
                self.text.push('\n');
            }
        }
        Ok(())
    }

    fn path(&self, import: &str) -> Result<String, ComposeError> {
        if import.chars().any(|c| c.is_ascii_lowercase()) {
            return Ok(format!("lib/{import}"));
        }
        let filled = self.variant.slots.iter().find(|(slot, _)| *slot == import);
        let empty = || ComposeError::EmptySlot { slot: import.to_owned(), file: self.variant.file };
        filled.map(|(_, path)| (*path).to_owned()).ok_or_else(empty)
    }
}

/// `override NAME: kind = rest`, taken apart.
fn knob(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.strip_prefix("override ")?.split_once(':')?;
    let (kind, rest) = rest.split_once('=')?;
    Some((name.trim(), kind.trim(), rest))
}

fn source(name: &str) -> Option<Cow<'static, str>> {
    if let Some(folder) = std::env::var_os("THIN_SHADERS") {
        let path = std::path::Path::new(&folder).join(format!("{name}.wgsl"));
        return std::fs::read_to_string(path).ok().map(Cow::Owned);
    }
    FILES.iter().find(|(file, _)| *file == name).map(|(_, text)| Cow::Borrowed(*text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(
        knobs: Vec<(&'static str, u32)>,
        slots: Vec<(&'static str, &'static str)>,
    ) -> Variant {
        Variant { file: "rms_norm", slots, knobs }
    }

    #[test]
    fn overrides_become_constants_and_imports_come_once() {
        let slots = vec![("REDUCE", "lib/reduce_workgroup")];
        let text = compose(&variant(vec![("WORKGROUP", 128)], slots)).expect("composes");

        assert!(text.contains("const WORKGROUP: u32 = 128u;"));
        assert!(!text.contains("override") && !text.contains("#import"));
        assert_eq!(text.matches("struct StepRow").count(), 1);
    }

    #[test]
    fn empty_slots_and_unknown_knobs_are_refused() {
        let slots = vec![("REDUCE", "lib/reduce_workgroup")];
        let no_knob = compose(&variant(vec![("LANES", 1)], slots));
        let empty = compose(&variant(vec![], vec![]));

        assert_eq!(no_knob, Err(ComposeError::NoKnob { knob: "LANES", file: "rms_norm" }));
        assert!(matches!(empty, Err(ComposeError::EmptySlot { .. })));
    }
}
