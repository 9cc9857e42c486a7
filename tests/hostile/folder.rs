//! Lies of a folder: weight files, index, config.json, tokenizer.json and its neighbours.

use std::ffi::OsString;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::case::{Case, case, command, fixture};

const RUN: &str = "run FILE --tokens 1,2 --max-tokens 1 --device cpu";
const SAY: &str = "run FILE hello --raw --max-tokens 1 --device cpu";
const CHAT: &str = "run FILE hello --max-tokens 1 --device cpu";

/// A copy of a reference checkpoint, with a file replaced.
fn with(folder: &Path, words: &str, name: &str, content: impl AsRef<[u8]>) -> Vec<OsString> {
    copy(folder, "goldens/llama");
    std::fs::write(folder.join(name), content).expect("written");
    command(words, folder)
}

fn copy(folder: &Path, from: &str) {
    for entry in std::fs::read_dir(fixture(from)).expect("the reference checkpoint") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_owned();
        if !name.to_string_lossy().starts_with("golden") {
            std::fs::copy(&path, folder.join(name)).expect("a copy");
        }
    }
}

/// A copy with a JSON file edited.
fn edit(
    folder: &Path,
    words: &str,
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Vec<OsString> {
    copy(folder, "goldens/llama");
    let path = folder.join(name);
    let mut value: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    change(value.as_object_mut().expect("an object"));
    std::fs::write(&path, serde_json::to_vec(&value).expect("JSON")).expect("written");
    command(words, folder)
}

fn config(folder: &Path, key: &str, value: Value) -> Vec<OsString> {
    edit(folder, RUN, "config.json", |config| drop(config.insert(key.to_owned(), value)))
}

fn tokenizer(folder: &Path, pointer: &str, value: Value) -> Vec<OsString> {
    edit(folder, SAY, "tokenizer.json", |file| {
        let (first, rest) = pointer.split_once('/').unwrap_or((pointer, ""));
        match rest {
            "" => drop(file.insert(first.to_owned(), value)),
            key => drop(file[first].as_object_mut().expect("there").insert(key.to_owned(), value)),
        }
    })
}

/// A weight file with this header and so many bytes behind it.
fn weights(folder: &Path, header: &str, data: usize) -> Vec<OsString> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    with(folder, RUN, "model.safetensors", file)
}

fn deep(open: &str, levels: usize) -> String {
    open.repeat(levels)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = weight_cases();
    all.extend(config_cases());
    all.extend(tokenizer_cases());
    all
}

fn weight_cases() -> Vec<Case> {
    const FILE: &str = "model.safetensors";
    vec![
        case(
            "safetensors_eight_ff_bytes",
            "R37",
            |f| with(f, RUN, FILE, [0xff; 8]),
            "states a header",
        ),
        case("safetensors_seven_bytes", "R37", |f| with(f, RUN, FILE, [0; 7]), "it has 7 bytes"),
        case(
            "safetensors_header_beyond_the_end",
            "R37",
            |f| with(f, RUN, FILE, b"\x0a\0\0\0\0\0\0\0{}"),
            "only 2 follow",
        ),
        case(
            "safetensors_span_and_shape_disagree",
            "R38",
            |f| weights(f, r#"{"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#, 4),
            "takes 4,000,000 bytes",
        ),
        case(
            "safetensors_shape_overflows",
            "R38",
            |f| {
                weights(
                    f,
                    r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
                    0,
                )
            },
            "impossible shape",
        ),
        case(
            "safetensors_unknown_dtype_with_offset_near_max",
            "R39",
            |f| {
                let header =
                    r#"{"a":{"dtype":"Q9_Z","shape":[2],"data_offsets":[18446744073709551608,8]}}"#;
                weights(f, header, 8)
            },
            "'Q9_Z'",
        ),
        case(
            "safetensors_duplicate_name",
            "R40",
            |f| {
                let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
                weights(f, &format!("{{{one},{one}}}"), 4)
            },
            "duplicate tensor name 'a'",
        ),
        case(
            "safetensors_without_tensors",
            "R41",
            |f| weights(f, r#"{"__metadata__":{"k":"v"}}"#, 0),
            "no weights found",
        ),
        case(
            "safetensors_cut_by_one_byte",
            "R42",
            |f| {
                let mut bytes =
                    std::fs::read(fixture("goldens/llama/model.safetensors")).expect("read");
                bytes.pop();
                with(f, RUN, FILE, bytes)
            },
            "model.safetensors' is damaged",
        ),
        case(
            "safetensors_is_a_web_page",
            "R42",
            |f| with(f, RUN, FILE, "<!DOCTYPE html>"),
            "web page",
        ),
        case(
            "safetensors_is_a_pointer",
            "R42",
            |f| with(f, RUN, FILE, "version https://git-lfs.github.com/spec/v1\n"),
            "Git-LFS pointer",
        ),
        case(
            "safetensors_header_nested_deeply",
            "R37",
            |f| weights(f, &format!(r#"{{"a":{}"#, deep("[", 100_000)), 0),
            "header cannot be read",
        ),
        case(
            "safetensors_header_of_many_names",
            "R37",
            |f| {
                let entry = |i: usize| {
                    format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)
                };
                let entries: Vec<String> = (0..50_000).map(entry).collect();
                weights(f, &format!("{{{}}}", entries.join(",")), 0)
            },
            "is missing",
        ),
        case(
            "index_names_a_missing_shard",
            "R45",
            |f| index(f, json!({"lm_head.weight": "model-00002-of-00002.safetensors"})),
            "which does not exist",
        ),
        case(
            "index_leaves_the_folder",
            "R97",
            |f| index(f, json!({"lm_head.weight": "../../secret.safetensors"})),
            "not a plain .safetensors file name",
        ),
        case(
            "index_places_a_tensor_that_its_file_lacks",
            "R47",
            |f| index(f, json!({"nothing": "model.safetensors"})),
            "which has no such tensor",
        ),
        case("index_is_no_index", "R47", |f| index(f, json!([1])), "cannot be read as JSON"),
        case(
            "index_nested_deeply",
            "R47",
            |f| with(f, RUN, "model.safetensors.index.json", deep("[", 200_000)),
            "cannot be read as JSON",
        ),
    ]
}

fn index(folder: &Path, map: Value) -> Vec<OsString> {
    let index = json!({"weight_map": map}).to_string();
    with(folder, RUN, "model.safetensors.index.json", index)
}

fn config_cases() -> Vec<Case> {
    const FILE: &str = "config.json";
    let ok = |case: Case| Case { exit: 0, ..case };
    let usage = |case: Case| Case { exit: 2, ..case };
    vec![
        case("config_empty", "R49", |f| with(f, RUN, FILE, ""), "cannot be read as JSON"),
        case("config_is_a_list", "R49", |f| with(f, RUN, FILE, "[]"), "cannot be read as JSON"),
        case(
            "config_not_utf8",
            "R49",
            |f| with(f, RUN, FILE, b"{\"a\":\"\xff\"}"),
            "cannot be read",
        ),
        case(
            "config_nested_deeply",
            "R49",
            |f| with(f, RUN, FILE, deep("{\"a\":", 100_000)),
            "recursion",
        ),
        case(
            "config_of_five_megabytes",
            "R49",
            |f| with(f, RUN, FILE, vec![b' '; 5 << 20]),
            "larger than",
        ),
        ok(case(
            "config_with_byte_order_mark",
            "R49",
            |f| {
                let text = std::fs::read(fixture("goldens/llama/config.json")).expect("read");
                with(f, RUN, FILE, [b"\xef\xbb\xbf".to_vec(), text].concat())
            },
            "",
        )),
        case("config_hidden_size_0", "R89", |f| config(f, "hidden_size", json!(0)), "hidden_size"),
        case(
            "config_hidden_size_negative",
            "R89",
            |f| config(f, "hidden_size", json!(-1)),
            "hidden_size",
        ),
        case(
            "config_hidden_size_huge",
            "R89",
            |f| config(f, "hidden_size", json!(4_000_000_000u32)),
            "hidden_size",
        ),
        case(
            "config_hidden_size_beyond_32_bits",
            "R89",
            |f| config(f, "hidden_size", json!(1u64 << 40)),
            "hidden_size",
        ),
        case(
            "config_hidden_size_text",
            "R89",
            |f| config(f, "hidden_size", json!("64")),
            "hidden_size must be",
        ),
        case(
            "config_layers_max",
            "R89",
            |f| config(f, "num_hidden_layers", json!(u32::MAX)),
            "between 1 and 4096",
        ),
        case(
            "config_heads_0",
            "R89",
            |f| config(f, "num_attention_heads", json!(0)),
            "num_attention_heads",
        ),
        case(
            "config_kv_heads_3_of_4",
            "R89",
            |f| config(f, "num_key_value_heads", json!(3)),
            "key-value heads",
        ),
        case("config_head_dim_odd", "R89", |f| config(f, "head_dim", json!(3)), "head_dim"),
        case("config_vocab_max", "R89", |f| config(f, "vocab_size", json!(u32::MAX)), "vocab_size"),
        case("config_rope_theta_0", "R26", |f| config(f, "rope_theta", json!(0)), "rope_theta"),
        case(
            "config_rope_theta_huge",
            "R26",
            |f| config(f, "rope_theta", json!(1e300)),
            "rope_theta",
        ),
        case("config_eps_negative", "R89", |f| config(f, "rms_norm_eps", json!(-1.0)), "eps"),
        case(
            "config_unknown_family",
            "R89",
            |f| config(f, "model_type", json!("foo")),
            "not supported",
        ),
        case(
            "config_terminal_escapes",
            "R89",
            |f| config(f, "hidden_act", json!("\u{1b}[2Jx")),
            "hidden_act",
        ),
        case(
            "config_quantised_with_gptq",
            "R51",
            |f| config(f, "quantization_config", json!({"quant_method": "gptq"})),
            "gptq",
        ),
        case(
            "generation_config_of_another_type",
            "R49",
            |f| with(f, RUN, "generation_config.json", "[]"),
            "generation_config.json",
        ),
        case(
            "generation_config_end_token_as_text",
            "R54",
            |f| with(f, RUN, "generation_config.json", r#"{"eos_token_id": "</s>"}"#),
            "eos_token_id",
        ),
        case(
            "generation_config_temperature_as_text",
            "R49",
            |f| with(f, RUN, "generation_config.json", r#"{"temperature": "hot"}"#),
            "temperature",
        ),
        usage(case(
            "generation_config_temperature_negative",
            "R49",
            |f| {
                with(
                    f,
                    RUN,
                    "generation_config.json",
                    r#"{"temperature": -3.0, "do_sample": true}"#,
                )
            },
            "temperature is -3",
        )),
    ]
}

fn tokenizer_cases() -> Vec<Case> {
    const FILE: &str = "tokenizer.json";
    vec![
        case("tokenizer_empty", "R49", |f| with(f, SAY, FILE, ""), "tokenizer.json"),
        case("tokenizer_empty_object", "R49", |f| with(f, SAY, FILE, "{}"), "tokenizer.json"),
        case(
            "tokenizer_not_utf8",
            "R49",
            |f| with(f, SAY, FILE, b"{\"\xff\":1}"),
            "tokenizer.json",
        ),
        case(
            "tokenizer_nested_deeply",
            "R49",
            |f| with(f, SAY, FILE, deep("[", 200_000)),
            "tokenizer.json",
        ),
        case("tokenizer_is_a_web_page", "R42", |f| with(f, SAY, FILE, "<html>"), "web page"),
        case(
            "tokenizer_is_a_pointer",
            "R42",
            |f| with(f, SAY, FILE, "version https://git-lfs"),
            "Git-LFS",
        ),
        case(
            "tokenizer_model_of_unknown_type",
            "R57",
            |f| tokenizer(f, "model/type", json!("Magic")),
            "tokenizer.json",
        ),
        case(
            "tokenizer_vocab_id_negative",
            "R57",
            |f| tokenizer(f, "model/vocab", json!({"a": -1})),
            "tokenizer.json",
        ),
        case(
            "tokenizer_vocab_id_max",
            "R57",
            |f| tokenizer(f, "model/vocab", json!({"a": u32::MAX})),
            "token",
        ),
        case(
            "tokenizer_vocab_id_beyond_32_bits",
            "R57",
            |f| tokenizer(f, "model/vocab", json!({"a": 1u64 << 40})),
            "tokenizer.json",
        ),
        case(
            "tokenizer_merge_of_unknown_parts",
            "R58",
            |f| tokenizer(f, "model/merges", json!([["qq", "zz"]])),
            "tokenizer.json",
        ),
        case(
            "tokenizer_merges_of_numbers",
            "R58",
            |f| tokenizer(f, "model/merges", json!([1, 2])),
            "tokenizer.json",
        ),
        case(
            "tokenizer_pattern_that_is_none",
            "R57",
            |f| {
                tokenizer(
                    f,
                    "pre_tokenizer",
                    json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
                )
            },
            "tokenizer.json",
        ),
        case(
            "tokenizer_added_token_without_id",
            "R57",
            |f| tokenizer(f, "added_tokens", json!([{"content": "x"}])),
            "tokenizer.json",
        ),
        case(
            "tokenizer_config_is_a_list",
            "R49",
            |f| with(f, SAY, "tokenizer_config.json", "[]"),
            "tokenizer_config.json",
        ),
        case(
            "tokenizer_config_chat_template_is_a_number",
            "R60",
            |f| with(f, CHAT, "tokenizer_config.json", r#"{"chat_template": 3}"#),
            "chat_template",
        ),
        case(
            "tokenizer_config_nested_deeply",
            "R49",
            |f| with(f, SAY, "tokenizer_config.json", deep("[", 200_000)),
            "tokenizer_config.json",
        ),
        case(
            "template_not_utf8",
            "R60",
            |f| with(f, CHAT, "chat_template.jinja", b"a\xff"),
            "not UTF-8",
        ),
        case(
            "template_with_a_syntax_error",
            "R60",
            |f| with(f, CHAT, "chat_template.jinja", "{% if %}"),
            "not valid at line 1",
        ),
        case(
            "template_that_refuses",
            "R60",
            |f| with(f, CHAT, "chat_template.jinja", "{{ raise_exception('No user') }}"),
            "refuses this conversation: No user",
        ),
        case(
            "template_that_never_ends",
            "template",
            |f| {
                with(
                    f,
                    CHAT,
                    "chat_template.jinja",
                    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                )
            },
            "did not finish within",
        ),
        case(
            "template_that_doubles_a_list",
            "template",
            |f| {
                let source = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}";
                with(f, CHAT, "chat_template.jinja", source)
            },
            "when it is written out",
        ),
        case(
            "template_namespace_in_itself",
            "template",
            |f| {
                with(
                    f,
                    CHAT,
                    "chat_template.jinja",
                    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns ~ '' }}",
                )
            },
            "inside another value",
        ),
        case(
            "template_nested_deeply",
            "template",
            |f| {
                with(
                    f,
                    CHAT,
                    "chat_template.jinja",
                    "{% if 1 %}".repeat(9_000) + &"{% endif %}".repeat(9_000),
                )
            },
            "10,000 tags",
        ),
    ]
}
