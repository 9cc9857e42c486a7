//! One name, many places: `shaders/kernels.toml` against the twins, shaders and case files.

use std::collections::{BTreeMap, BTreeSet};

/// One `[[kernel]]` of the table.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// The op or, for a fused kernel, the ops it stands for.
    pub(crate) ops: Vec<String>,
    pub(crate) backends: Vec<String>,
}

/// File stems of the tree that must agree with the table.
#[derive(Default)]
pub(crate) struct Tree {
    /// `src/backend/cpu/kernels/*.rs`, without `mod.rs`
    pub(crate) twins: BTreeSet<String>,
    /// `shaders/*.wgsl`
    pub(crate) shaders: BTreeSet<String>,
    /// `shaders/cuda/*.cu`
    pub(crate) cuda: BTreeSet<String>,
    /// `tests/cases/*.toml`
    pub(crate) cases: BTreeSet<String>,
}

/// Reads the table. It uses three keys, strings and lists of strings; anything else is an error.
pub(crate) fn parse(text: &str) -> Result<Vec<Kernel>, String> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut statement = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = without_comment(line).trim();
        let fail = |what: &str| format!("shaders/kernels.toml:{}: {what}", index + 1);
        if statement.is_empty() && line == "[[kernel]]" {
            kernels.push(Kernel::default());
            continue;
        }
        statement.push_str(line);
        if statement.is_empty() || (statement.contains('[') && !statement.ends_with(']')) {
            continue; // blank, or a list that goes on
        }
        let (key, value) =
            statement.split_once('=').ok_or_else(|| fail("expected 'key = value'"))?;
        let kernel = kernels.last_mut().ok_or_else(|| fail("a key before the first [[kernel]]"))?;
        let mut values = strings(value.trim()).ok_or_else(|| fail("expected strings"))?;
        match key.trim() {
            "name" if values.len() == 1 => kernel.name = values.remove(0),
            "ops" => kernel.ops = values,
            "backends" => kernel.backends = values,
            _ => return Err(fail("expected name, ops or backends")),
        }
        statement.clear();
    }
    if statement.is_empty() {
        Ok(kernels)
    } else {
        Err("shaders/kernels.toml: an open list at the end".into())
    }
}

/// Everything that is in one place and missing in another.
pub(crate) fn violations(kernels: &[Kernel], tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let mut rows: BTreeMap<&str, &Kernel> = BTreeMap::new();
    for kernel in kernels {
        if rows.insert(&kernel.name, kernel).is_some() {
            found.push(format!("shaders/kernels.toml names '{}' twice", kernel.name));
        }
    }
    let has = |kernel: &Kernel, backend: &str| kernel.backends.iter().any(|b| b == backend);
    // a fused kernel has no twin of its own: those of the ops it stands for are its specification
    let specified: BTreeSet<&String> =
        kernels.iter().filter(|k| has(k, "cpu")).flat_map(|k| &k.ops).collect();

    for kernel in kernels {
        let name = &kernel.name;
        if name.is_empty() || kernel.ops.is_empty() || kernel.backends.is_empty() {
            found.push(format!(
                "shaders/kernels.toml: kernel '{name}' lacks a name, ops or backends"
            ));
        }
        for backend in &kernel.backends {
            if !["cpu", "wgpu", "cuda"].contains(&backend.as_str()) {
                found.push(format!(
                    "shaders/kernels.toml: kernel '{name}' names unknown backend '{backend}'"
                ));
            }
        }
        if !has(kernel, "cpu") {
            for op in kernel.ops.iter().filter(|op| !specified.contains(op)) {
                found.push(format!(
                    "kernel '{name}' stands for '{op}', which no kernel with a CPU twin computes"
                ));
            }
        }
        let places = [
            (has(kernel, "cpu"), &tree.twins, format!("src/backend/cpu/kernels/{name}.rs")),
            (has(kernel, "wgpu"), &tree.shaders, format!("shaders/{name}.wgsl")),
            (has(kernel, "cuda"), &tree.cuda, format!("shaders/cuda/{name}.cu")),
            // One shader of several for one op is tested by the cases of that op's twin.
            (
                has(kernel, "cpu") || kernel.ops.len() > 1,
                &tree.cases,
                format!("tests/cases/{name}.toml"),
            ),
        ];
        for (wanted, files, path) in places {
            match (wanted, files.contains(name)) {
                (true, false) => found.push(format!("kernel '{name}' has no {path}")),
                (false, true) => found
                    .push(format!("{path} exists but kernel '{name}' does not list its backend")),
                (true, true) | (false, false) => {}
            }
        }
    }
    let files = [
        (&tree.twins, "twin"),
        (&tree.shaders, "shader"),
        (&tree.cuda, "CUDA file"),
        (&tree.cases, "case file"),
    ];
    for (names, kind) in files {
        for name in names.iter().filter(|name| !rows.contains_key(name.as_str())) {
            found.push(format!("{kind} '{name}' has no entry in shaders/kernels.toml"));
        }
    }
    found
}

fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(before, _)| before)
}

/// `"a"` or `["a", "b"]`; `None` for anything else.
fn strings(value: &str) -> Option<Vec<String>> {
    let list = match value.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.trim().trim_end_matches(','),
        None => value,
    };
    list.split(',')
        .filter(|item| !item.trim().is_empty())
        .map(|item| Some(item.trim().strip_prefix('"')?.strip_suffix('"')?.to_owned()))
        .collect()
}

mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    const TABLE: &str = "# kernels\n[[kernel]]\nname = \"rms_norm\" # row by row\nops = [\"RmsNorm\"]\nbackends = [\"cpu\"]\n";

    #[test]
    fn table_parses_lists_over_several_lines() {
        let kernels = parse(
            "[[kernel]]\nname = \"a\"\nops = [\n  \"A\",\n  \"B\",\n]\nbackends = [\"wgpu\"]",
        )
        .expect("valid");

        assert_eq!(kernels[0].ops, ["A", "B"]);
    }

    #[test]
    fn table_refuses_what_it_does_not_know() {
        assert!(parse("name = \"a\"").is_err());
        assert!(parse("[[kernel]]\nnmae = \"a\"").is_err());
        assert!(parse("[[kernel]]\nname = a").is_err());
        assert!(parse("[[kernel]]\nops = [\"A\"").is_err());
    }

    #[test]
    fn names_agree_when_every_place_has_them() {
        let tree = Tree { twins: set(&["rms_norm"]), cases: set(&["rms_norm"]), ..Tree::default() };

        assert_eq!(violations(&parse(TABLE).expect("valid"), &tree), Vec::<String>::new());
    }

    #[test]
    fn a_missing_twin_or_case_is_named() {
        let found = violations(&parse(TABLE).expect("valid"), &Tree::default());

        assert_eq!(
            found,
            [
                "kernel 'rms_norm' has no src/backend/cpu/kernels/rms_norm.rs",
                "kernel 'rms_norm' has no tests/cases/rms_norm.toml"
            ]
        );
    }

    #[test]
    fn a_file_without_a_row_or_a_backend_is_named() {
        let names = set(&["rms_norm"]);
        let tree =
            Tree { twins: names.clone(), cases: names.clone(), shaders: names, ..Tree::default() };

        assert_eq!(violations(&[], &tree).len(), 3);
        assert_eq!(violations(&parse(TABLE).expect("valid"), &tree).len(), 1); // wgpu is not listed
    }

    #[test]
    fn a_fused_kernel_needs_the_twins_of_its_ops() {
        let fused =
            "[[kernel]]\nname = \"norm_add\"\nops = [\"RmsNorm\", \"Add\"]\nbackends = [\"wgpu\"]";
        let tree = Tree {
            twins: set(&["rms_norm"]),
            shaders: set(&["norm_add"]),
            cases: set(&["rms_norm", "norm_add"]),
            ..Tree::default()
        };

        let found = violations(&parse(&format!("{TABLE}{fused}")).expect("valid"), &tree);

        assert_eq!(
            found,
            ["kernel 'norm_add' stands for 'Add', which no kernel with a CPU twin computes"]
        );
    }
}
