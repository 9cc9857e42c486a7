//! Tokenizers rebuilt from the metadata of GGUF files give the ids of the tokenizer.json they came from.

use std::path::Path;

use serde_json::Value as Json;
use thintensor::format::asset;
use thintensor::import::{Purpose, open_source};
use thintensor::tokenizer::{TextAssets, Tokenizer};

use crate::folder::golden;
use crate::gguf_file::{File, Value, llama};

/// The tokenizer that a file's pages carry.
fn rebuilt(path: &Path) -> Result<Tokenizer, String> {
    let (packed, _) = open_source(path, Purpose::Run).map_err(|error| error.to_string())?;
    let read = |name: &str| asset(&packed, name).expect("readable");
    Tokenizer::from_assets(&TextAssets {
        tokenizer_json: read("tokenizer.json"),
        tokenizer_config: read("tokenizer_config.json"),
        ..TextAssets::default()
    })
    .map_err(|error| error.to_string())
}

/// The tokenizer of a folder.
fn original(folder: &Path) -> Tokenizer {
    let read = |name: &str| std::fs::read(folder.join(name)).ok();
    Tokenizer::from_assets(&TextAssets {
        tokenizer_json: read("tokenizer.json"),
        tokenizer_config: read("tokenizer_config.json"),
        ..TextAssets::default()
    })
    .expect("a tokenizer")
}

fn strings(list: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/text/assorted.json");
    let json: Json = serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON");
    serde_json::from_value(json[list].clone()).expect("texts")
}

fn assert_same(ours: &Tokenizer, theirs: &Tokenizer, strings: &[String]) {
    for text in strings {
        for special in [false, true] {
            let ids = ours.encode(text, special).expect("encodes");
            assert_eq!(ids, theirs.encode(text, special).expect("encodes"), "{text:?}");
            assert_eq!(ours.decode(&ids, false), theirs.decode(&ids, false), "{text:?}");
        }
        let ordinary = ours.encode_ordinary(text).expect("encodes");
        assert_eq!(ordinary, theirs.encode_ordinary(text).expect("encodes"), "{text:?}");
    }
    assert_eq!(ours.vocab_size(), theirs.vocab_size());
    assert_eq!(ours.bos_id(), theirs.bos_id());
    assert_eq!(ours.adds_bos(), theirs.adds_bos());
    assert_eq!(ours.end_ids(), theirs.end_ids());
}

#[test]
fn r59_ids_of_the_reference_files_equal_those_of_their_folders() {
    let strings = strings("assorted");
    assert!(strings.len() >= 200);
    for name in ["llama", "llama-tied", "qwen3", "smollm3"] {
        let file = golden("").join(format!("../goldens-gguf/{name}.gguf"));

        let ours = rebuilt(&file).expect("a tokenizer");

        assert_same(&ours, &original(&golden(name)), &strings);
    }
}

#[test]
fn r59_ids_of_a_real_file_equal_those_of_its_folder() {
    let models = std::env::var_os("THIN_MODELS").map(std::path::PathBuf::from);
    let file = models.as_ref().map(|models| models.join("cache/smollm2-135m.gguf"));
    let Some((models, file)) = models.zip(file.filter(|file| file.is_file())) else {
        eprintln!("not run: THIN_MODELS has no cache/smollm2-135m.gguf");
        return;
    };

    let ours = rebuilt(&file).expect("a tokenizer");

    let all = [strings("assorted"), strings("decomposed")].concat();
    assert_same(&ours, &original(&models.join("smollm2-135m")), &all);
}

/// A model of four tokens' embeddings becomes one of as many as there are `tokens`.
fn with_tokens(tokens: &[&str], types: &[i32]) -> File {
    let mut file = llama(["BF16"; 8]);
    let embed = file.tensor("token_embd.weight");
    embed.dims[1] = tokens.len() as u64;
    embed.bytes = vec![0; tokens.len() * 512];
    let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
    file.set("tokenizer.ggml.tokens", Value::Texts(tokens));
    file.set("tokenizer.ggml.token_type", Value::Ints(types.to_vec()));
    file
}

fn byte_level() -> File {
    let mut file = with_tokens(&["a", "b", "c", "ab", "bc", "<|end|>"], &[1, 1, 1, 1, 1, 3]);
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", "gpt-2");
    file.set("tokenizer.ggml.merges", Value::Texts(vec!["b c".into(), "a b".into()]));
    file
}

/// SentencePiece: three special tokens, all bytes, then pieces with their scores.
fn sentence_piece() -> File {
    let pieces = ["▁", "a", "b", "c", "bc", "ab", "▁a"];
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let special = ["<unk>", "<s>", "</s>"];
    let tokens: Vec<&str> =
        special.into_iter().chain(bytes.iter().map(String::as_str)).chain(pieces).collect();
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).chain([1; 7]).collect();
    let mut file = with_tokens(&tokens, &types);
    file.set("tokenizer.ggml.model", "llama");
    let scores = [0.0; 259].into_iter().chain([-10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0]);
    file.set("tokenizer.ggml.scores", Value::Floats(scores.collect()));
    file.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    file.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    file.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    file
}

fn tokenizer(file: &File) -> Result<Tokenizer, String> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, file.encode()).expect("written");
    thintensor::import::gguf::fuzz(&file.encode());
    rebuilt(&path)
}

#[test]
fn r58_merges_are_taken_by_rank_in_both_kinds() {
    let ids = |file: &File, text: &str| {
        tokenizer(file).expect("a tokenizer").encode(text, false).expect("encodes")
    };

    // `b c` ranks before `a b`.
    assert_eq!(ids(&byte_level(), "abc"), [0, 4]);
    assert_eq!(ids(&byte_level(), "ab<|end|>c"), [3, 5, 2]);
    // ▁ is 259; bc scores above ab and ▁a, so that ▁abc is ▁a bc.
    assert_eq!(ids(&sentence_piece(), "abc"), [265, 263]);
    let mut bare = sentence_piece();
    bare.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    assert_eq!(ids(&bare, "abc"), [260, 263]);
}

#[test]
fn sentence_piece_falls_back_to_bytes_and_decodes_to_the_text() {
    let tokenizer = tokenizer(&sentence_piece()).expect("a tokenizer");

    // é is 0xC3 0xA9, and byte 0 is token 3.
    assert_eq!(tokenizer.encode("aé", false).expect("encodes"), [265, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(tokenizer.encode("a", true).expect("encodes"), [1, 265]);
    assert_eq!(tokenizer.end_ids(), [2]);
    for text in ["abc", "a  b", "é\n", "😀 c", "  a"] {
        let ids = tokenizer.encode(text, false).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, true).trim_start(), text.trim_start(), "{text:?}");
    }
}

#[test]
fn r57_what_is_not_known_is_refused_by_name() {
    let says = |change: &dyn Fn(&mut File)| {
        let mut file = byte_level();
        change(&mut file);
        tokenizer(&file).expect_err("refused")
    };
    let set = |key: &'static str, value: Value| says(&|file| file.set(key, value.clone()));

    assert!(set("tokenizer.ggml.pre", "default".into()).contains("'default'"));
    assert!(set("tokenizer.ggml.pre", "jina-v2-de".into()).contains("known: gpt-2, smollm"));
    assert!(says(&|file| file.remove("tokenizer.ggml.pre")).contains("pre is missing"));
    assert!(set("tokenizer.ggml.model", "t5".into()).contains("'t5'"));
    assert!(set("tokenizer.ggml.model", Value::U32(1)).contains("UINT32"));
    let merges = |text: &str| Value::Texts(vec![text.into()]);
    assert!(set("tokenizer.ggml.merges", merges("abc")).contains("merges[0] is \"abc\""));
    assert!(set("tokenizer.ggml.merges", merges("a x")).contains("merges[0]"));
    assert!(set("tokenizer.ggml.merges", Value::Ints(vec![1])).contains("INT32"));
    let types = set("tokenizer.ggml.token_type", Value::Ints(vec![1]));
    assert!(types.contains("has 1 entries, but there are 6 tokens"), "{types}");
    assert!(set("tokenizer.ggml.eos_token_id", Value::U32(6)).contains("is 6, but there are 6"));
    let twice = Value::Texts(["a", "a", "c", "d", "e", "f"].map(String::from).to_vec());
    assert!(set("tokenizer.ggml.tokens", twice).contains("tokens 0 and 1 are both \"a\""));
    let mut unscored = sentence_piece();
    unscored.remove("tokenizer.ggml.scores");
    assert!(tokenizer(&unscored).expect_err("refused").contains("scores' is missing"));
    assert!(tokenizer(&llama(["BF16"; 8])).is_err(), "no tokenizer, no tokenizer.json");
}
