//! The rules of the tree that a compiler does not check. Each rule is a pure function over text,
//! with small bad inputs that it must catch; the tests named `tree_*` run them on this repository.
//!
//! `structure/layers.rs` has the order of modules, `structure/kernels.rs` the table of kernels,
//! `structure/source.rs` tells code from comments and tests. Missing folders are fine.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use source::{code, line_of, without_tests, words};

#[path = "structure/kernels.rs"]
mod kernels;
#[path = "structure/layers.rs"]
mod layers;
#[path = "structure/source.rs"]
mod source;

const MAX_LINES: usize = 700;
const MAX_DOC_LINES: usize = 15;
/// `lib.rs` is the map of the crate, so its doc may be longer than a module's.
const MAX_MAP_LINES: usize = 80;
const MAX_FILE_BYTES: u64 = 8_000_000;

/// Paths under `src`, without `.rs`, where `unsafe` may stand: the file or the folder of that name.
const UNSAFE_PLACES: &[&str] = &[
    "backend/cpu/fast",
    "backend/wgpu/shader",
    "backend/wgpu/device",
    "backend/cuda",
    "import/map",
    "stream/reader",
];

/// What must not be in a committed file; split here so that this file passes its own test.
const FOREIGN: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("proxy.golang", ".org"),
];

/// A file with its path from the top of the repository, `/` between the parts.
struct File {
    path: String,
    text: String,
}

fn oversized(file: &File) -> Option<String> {
    let lines = file.text.lines().count();
    (lines > MAX_LINES).then(|| format!("{} has {lines} lines, more than {MAX_LINES}", file.path))
}

fn bad_module_doc(file: &File) -> Option<String> {
    let lines = file.text.lines().take_while(|line| line.starts_with("//!")).count();
    let most = if file.path == "src/lib.rs" { MAX_MAP_LINES } else { MAX_DOC_LINES };
    match lines {
        0 => Some(format!("{} does not start with a module doc ('//!')", file.path)),
        n if n > most => {
            Some(format!("{} has a module doc of {n} lines, more than {most}", file.path))
        }
        _ => None,
    }
}

/// `unsafe` outside its places, or without a `// SAFETY:` above it (`# Safety` for an unsafe fn).
fn bad_unsafe(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let module = file.path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs"));
    let allowed = module.is_some_and(|module| {
        UNSAFE_PLACES
            .iter()
            .any(|place| module == *place || module.starts_with(&format!("{place}/")))
    });
    let mut found = Vec::new();
    for at in words(&code, "unsafe") {
        let line = line_of(&code, at);
        if !allowed {
            found.push(format!("{}:{line}: 'unsafe' outside its few places", file.path));
        } else if !justified(&lines, line) {
            found.push(format!("{}:{line}: 'unsafe' without a SAFETY comment above", file.path));
        }
    }
    found
}

/// Looks from the line of `unsafe` up to where its statement or item starts.
fn justified(lines: &[&str], line: usize) -> bool {
    let states = |text: &str| text.contains("// SAFETY:") || text.contains("/// # Safety");
    let above = lines[..line - 1].iter().rev().map(|text| text.trim());
    states(lines[line - 1])
        || above
            .take_while(|text| {
                text.starts_with("//")
                    || text.starts_with("#[")
                    || !(text.is_empty() || text.ends_with([';', '{', '}']))
            })
            .any(states)
}

/// Unfinished work, debugging left-overs, and panics on data from outside.
fn loose_ends(file: &File) -> Vec<String> {
    let kept = without_tests(&code(&file.text));
    let mut found = Vec::new();
    for name in ["todo!", "unimplemented!", "dbg!", ".unwrap()"] {
        for (at, _) in kept.match_indices(name) {
            found.push(format!("{}:{}: '{name}' outside tests", file.path, line_of(&kept, at)));
        }
    }
    found
}

fn foreign(path: &str, bytes: &[u8]) -> Vec<String> {
    let contains = |text: &str| {
        let first = text.as_bytes()[0];
        bytes
            .iter()
            .enumerate()
            .any(|(at, &b)| b == first && bytes[at..].starts_with(text.as_bytes()))
    };
    FOREIGN
        .iter()
        .filter(|text| contains(text))
        .map(|text| format!("{path} contains '{text}'"))
        .collect()
}

/// Files that are tests although they stand under `src`.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

// --- the repository --------------------------------------------------------------------------

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder`, sorted; none if it does not exist. Fixtures are data, not ours to judge.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        let Ok(entries) = fs::read_dir(&next) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("the folder can be listed").path();
            match path.is_dir() {
                true if path.ends_with("tests/fixtures") => {}
                true => open.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    files
}

/// Text files of the given kinds below a folder at the top.
fn texts(folder: &str, kinds: &[&str]) -> Vec<File> {
    let kind = |path: &Path| path.extension().and_then(|e| e.to_str()).unwrap_or("").to_owned();
    walk(&root().join(folder))
        .into_iter()
        .filter(|path| kinds.contains(&kind(path).as_str()))
        .map(|path| File {
            text: fs::read_to_string(&path).expect("source files are UTF-8"),
            path: name(&path),
        })
        .collect()
}

fn name(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("below the top");
    path.to_str().expect("file names are UTF-8").replace('\\', "/")
}

/// Every committed file; where git is absent (a source archive), every file outside `target`.
fn tracked() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => output
            .stdout
            .split(|&b| b == 0)
            .filter(|name| !name.is_empty())
            .map(|name| root().join(std::str::from_utf8(name).expect("file names are UTF-8")))
            .filter(|path| path.is_file())
            .collect(),
        Ok(_) | Err(_) => walk(&root())
            .into_iter()
            .filter(|path| !name(path).starts_with("target/") && !name(path).starts_with(".git/"))
            .collect(),
    }
}

fn stems(folder: &str, kind: &str) -> BTreeSet<String> {
    let folder = root().join(folder);
    walk(&folder)
        .iter()
        .filter(|path| {
            path.parent() == Some(&folder) && path.extension().is_some_and(|e| e == kind)
        })
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .filter(|stem| stem != "mod")
        .collect()
}

fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "{} place(s) break the rule:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn tree_modules_use_only_modules_to_their_left() {
    let files: Vec<(String, String)> = texts("src", &["rs"])
        .into_iter()
        .filter(|file| !is_test_file(&file.path))
        .map(|file| (file.path["src/".len()..].to_owned(), without_tests(&code(&file.text))))
        .collect();
    let modules: Vec<layers::Module> =
        files.iter().map(|(path, code)| layers::Module { path, code }).collect();

    assert_none(layers::violations(&modules));
}

#[test]
fn tree_files_stay_below_the_line_cap() {
    let kinds = ["rs", "wgsl", "cu", "cuh", "toml", "py", "sh", ""];
    let folders = ["src", "shaders", "tests", "benches", "examples"];

    assert_none(
        folders
            .iter()
            .flat_map(|folder| texts(folder, &kinds))
            .filter_map(|f| oversized(&f))
            .collect(),
    );
}

#[test]
fn tree_kernels_have_one_name_in_every_place() {
    let table = fs::read_to_string(root().join("shaders/kernels.toml")).unwrap_or_default();
    let tree = kernels::Tree {
        twins: stems("src/backend/cpu/kernels", "rs"),
        shaders: stems("shaders", "wgsl"),
        cuda: stems("shaders/cuda", "cu"),
        cases: stems("tests/cases", "toml"),
    };

    match kernels::parse(&table) {
        Ok(rows) => assert_none(kernels::violations(&rows, &tree)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn tree_unsafe_stays_in_its_places() {
    let folders = ["src", "benches", "examples"];

    assert_none(
        folders
            .iter()
            .flat_map(|folder| texts(folder, &["rs"]))
            .flat_map(|f| bad_unsafe(&f))
            .collect(),
    );
}

#[test]
fn tree_has_no_loose_ends() {
    let files = texts("src", &["rs"]).into_iter().filter(|file| !is_test_file(&file.path));

    assert_none(files.flat_map(|file| loose_ends(&file)).collect());
}

#[test]
fn tree_rust_files_start_with_a_short_module_doc() {
    let folders = ["src", "tests", "benches", "examples"];

    assert_none(
        folders
            .iter()
            .flat_map(|folder| texts(folder, &["rs"]))
            .filter_map(|f| bad_module_doc(&f))
            .collect(),
    );
}

#[test]
fn tree_names_no_machine_and_no_registry() {
    let files = tracked().into_iter().filter(|path| !path.ends_with("Cargo.lock"));

    assert_none(
        files.flat_map(|path| foreign(&name(&path), &fs::read(&path).expect("readable"))).collect(),
    );
}

#[test]
fn tree_holds_no_large_file() {
    let bytes = |path: &PathBuf| fs::metadata(path).expect("readable").len();

    let large = tracked().into_iter().filter(|path| bytes(path) > MAX_FILE_BYTES);
    assert_none(large.map(|path| format!("{} has {} bytes", name(&path), bytes(&path))).collect());
}

// --- the rules on small bad inputs -----------------------------------------------------------

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn line_cap_rejects_701_lines() {
    assert!(oversized(&file("src/a.rs", &"x\n".repeat(700))).is_none());
    assert!(oversized(&file("src/a.rs", &"x\n".repeat(701))).is_some());
}

#[test]
fn module_doc_must_exist_and_be_short() {
    assert!(bad_module_doc(&file("src/kv.rs", "//! What it is.\nfn a() {}")).is_none());
    assert!(bad_module_doc(&file("src/kv.rs", "/// Not a module doc.\nfn a() {}")).is_some());
    assert!(bad_module_doc(&file("src/kv.rs", &"//! x\n".repeat(16))).is_some());
    assert!(bad_module_doc(&file("src/lib.rs", &"//! x\n".repeat(16))).is_none());
}

#[test]
fn unsafe_is_rejected_outside_its_places() {
    let text = "// SAFETY: n is in bounds\nunsafe { f() }";

    assert_eq!(
        bad_unsafe(&file("src/kv.rs", text)),
        ["src/kv.rs:2: 'unsafe' outside its few places"]
    );
    assert_eq!(bad_unsafe(&file("src/backend/cpu/fast.rs", text)), Vec::<String>::new());
    assert_eq!(bad_unsafe(&file("src/backend/cuda/mod.rs", text)), Vec::<String>::new());
    assert_eq!(bad_unsafe(&file("src/backend/cpu/faster.rs", text)).len(), 1);
    assert_eq!(
        bad_unsafe(&file("src/kv.rs", "// unsafe\n#![deny(unsafe_code)]")),
        Vec::<String>::new()
    );
}

#[test]
fn unsafe_needs_a_safety_comment_on_its_own_statement() {
    let check = |text: &str| bad_unsafe(&file("src/stream/reader.rs", text)).len();

    assert_eq!(check("f();\nunsafe { g() }"), 1);
    assert_eq!(check("// SAFETY: why\nlet a =\n    unsafe { g() };"), 0);
    assert_eq!(check("// SAFETY: why\nunsafe { g() };\nunsafe { h() };"), 1);
    assert_eq!(check("/// # Safety\n/// n is in bounds.\n#[inline]\npub unsafe fn g() {}"), 0);
}

#[test]
fn loose_ends_are_found_in_code_but_not_in_tests_or_text() {
    let text = "fn a() { todo!() }\nfn b() { x.unwrap(); dbg!(y); unimplemented!() }\n// .unwrap()\n\
                const C: &str = \"todo!\";\n#[cfg(test)]\nmod tests { fn d() { x.unwrap() } }";

    let found = loose_ends(&file("src/a.rs", text));

    assert_eq!(found.len(), 4);
    assert!(found.contains(&"src/a.rs:2: '.unwrap()' outside tests".to_owned()));
}

#[test]
fn foreign_text_is_found_anywhere_in_a_file() {
    let path = [b"\0\xffsee ".as_slice(), FOREIGN[1].as_bytes(), b"x"].concat();

    assert_eq!(foreign("a.bin", &path).len(), 1);
    assert_eq!(foreign("a.md", b"https://example.org/roots/worked/"), Vec::<String>::new());
}
