//! The order of modules: one may use only those of its own tier or of a tier to its left.
//!
//! Reads `crate::x` and the `super::super::x` that means the same. A name that `lib.rs`
//! re-exports counts as a use of the module it comes from.

use std::collections::BTreeMap;

use crate::source::{is_word, line_of};

/// From left to right. A new top-level module gets its place here.
const TIERS: &[&[&str]] = &[
    &["error", "quant", "format"],
    &["model"],
    &["import"],
    &["plan"],
    &["program"],
    &["backend"],
    &["stream", "kv"],
    &["engine"],
    &["sample", "tokenizer", "detokenize", "chat"],
    &["generate"],
    &["validate", "bench", "doctor", "pull", "server", "fuzz"],
    &["cli"],
    &["main"],
];

/// What the layering check needs of one file under `src`: its path there and its code without tests.
pub(crate) struct Module<'a> {
    pub(crate) path: &'a str,
    pub(crate) code: &'a str,
}

/// Every use of a module further right, and every top-level module that has no place.
pub(crate) fn violations(modules: &[Module]) -> Vec<String> {
    let lib = modules.iter().find(|m| m.path == "lib.rs");
    let exported = lib.map(|m| reexports(m.code)).unwrap_or_default();
    modules.iter().flat_map(|module| module_violations(module, &exported)).collect()
}

fn module_violations(module: &Module, exported: &BTreeMap<String, String>) -> Vec<String> {
    let owner = top(module.path);
    if owner == "lib" {
        return Vec::new(); // the root declares and re-exports everything
    }
    let Some(own) = tier(owner) else {
        return vec![format!(
            "src/{}: module '{owner}' has no place in the order of modules",
            module.path
        )];
    };
    if owner == "error" {
        return Vec::new(); // `Error` wraps the errors of every domain
    }
    let depth = depth(module.path);
    let mut found = Vec::new();
    for (at, name) in uses(module.code, depth) {
        let used = exported.get(&name).unwrap_or(&name);
        let place = format!("src/{}:{}", module.path, line_of(module.code, at));
        match tier(used) {
            Some(other) if other <= own => {}
            Some(_) => {
                found.push(format!("{place}: '{owner}' uses '{used}', which is to its right"))
            }
            None => found.push(format!(
                "{place}: 'crate::{name}' is neither a module with a place nor a re-export"
            )),
        }
    }
    found
}

fn tier(module: &str) -> Option<usize> {
    TIERS.iter().position(|tier| tier.contains(&module))
}

/// `format/page.rs` and `format/mod.rs` belong to `format`, `kv.rs` to `kv`.
fn top(path: &str) -> &str {
    path.split('/').next().map_or(path, |first| first.strip_suffix(".rs").unwrap_or(first))
}

/// How many `super` lead from this file's module to the crate root.
fn depth(path: &str) -> usize {
    path.split('/').filter(|&part| part != "mod.rs").count()
}

/// The first name after each path to the crate root, with its offset.
fn uses(code: &str, depth: usize) -> Vec<(usize, String)> {
    let supers = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", "thintensor::", supers.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            let inside = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            let after = &code[at + root.len()..];
            if !inside && !after.starts_with("super::") {
                found.extend(heads(after).into_iter().map(|name| (at, name)));
            }
        }
    }
    found
}

/// `a::b` gives `a`; `{a::{b, c}, d}` gives `a` and `d`.
fn heads(text: &str) -> Vec<String> {
    let Some(group) = text.strip_prefix('{') else {
        let name: String = text.bytes().take_while(|&b| is_word(b)).map(char::from).collect();
        return if name.is_empty() { Vec::new() } else { vec![name] };
    };
    let (mut depth, mut expect, mut names) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expect = true,
            _ if expect && c.is_alphanumeric() => {
                names.extend(heads(&group[at..]));
                expect = false;
            }
            _ => {}
        }
    }
    names
}

/// Names that `lib.rs` lifts to the crate root, each with the module it comes from.
fn reexports(lib: &str) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for statement in lib.split(';') {
        let Some((_, path)) = statement.rsplit_once("pub use ") else {
            continue;
        };
        let path = path.trim().trim_start_matches("crate::");
        let Some((module, names)) = path.split_once("::") else {
            continue;
        };
        for name in names.split([',', '{', '}']) {
            let last = name.rsplit("::").next().unwrap_or(name);
            let last = last.rsplit(" as ").next().unwrap_or(last).trim();
            if !last.is_empty() {
                map.insert(last.to_owned(), module.to_owned());
            }
        }
    }
    map
}

mod tests {
    use super::*;

    fn check(path: &str, code: &str) -> Vec<String> {
        violations(&[
            Module {
                path: "lib.rs",
                code: "pub use engine::{Engine, Session as S};\npub use error::Error;",
            },
            Module { path, code },
        ])
    }

    #[test]
    fn layering_accepts_own_tier_and_left() {
        let code = "use crate::format::Page;\nuse crate::{Error, quant::{int, float}};";

        assert_eq!(check("quant/mod.rs", code), Vec::<String>::new());
    }

    #[test]
    fn layering_rejects_a_module_to_the_right() {
        let found = check("model/spec.rs", "\nuse crate::engine::Engine;");

        assert_eq!(found, ["src/model/spec.rs:2: 'model' uses 'engine', which is to its right"]);
    }

    #[test]
    fn layering_reads_groups_reexports_and_paths_in_code() {
        assert_eq!(check("plan.rs", "use crate::{model::{spec, rope}, kv};").len(), 1);
        assert_eq!(check("plan.rs", "fn f(e: &crate::Engine) {}").len(), 1);
        assert_eq!(check("plan.rs", "use crate::S;").len(), 1);
        assert_eq!(check("plan.rs", "fn f() { crate::cli::run() }").len(), 1);
    }

    #[test]
    fn layering_follows_super_to_the_root_only() {
        assert_eq!(check("format/page.rs", "use super::super::engine::Engine;").len(), 1);
        assert_eq!(check("format/page.rs", "use super::engine;"), Vec::<String>::new());
        assert_eq!(check("kv.rs", "use super::engine;").len(), 1);
    }

    #[test]
    fn layering_rejects_unknown_modules_and_exempts_error() {
        assert_eq!(check("utils.rs", "").len(), 1);
        assert_eq!(check("plan.rs", "use crate::helpers;").len(), 1);
        assert_eq!(check("error.rs", "use crate::engine;"), Vec::<String>::new());
    }
}
