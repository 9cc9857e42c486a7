//! Values as they are typed, and what they mean: sizes, token ids, profiles, KV formats, template variables.
//!
//! Each refuses what it does not understand with a sentence on what to write instead.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use thintensor::plan::KvFormat;

use super::error::Error;

/// A list of ids larger than this is not one.
const MAX_TOKENS_BYTES: u64 = 64 << 20;

/// Precision profiles by name; the first is the one this version has.
const PROFILES: [&str; 7] = [
    "safe",
    "balanced",
    "quality-fp8",
    "selective-mxfp4",
    "max-performance",
    "max-max-perf",
    "autofit",
];

/// Formats of cached keys and values that come later.
const KV_LATER: [&str; 2] = ["q8", "fp8"];

/// A size with its unit, in bytes: `6.6GiB`, `512MB`.
///
/// **Errors**: no unit, an unknown one, or a number that is not above zero.
pub(crate) fn size(flag: &str, text: &str) -> Result<u64, Error> {
    const UNITS: [(&str, u64); 9] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("b", 1),
    ];
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let refused =
        |problem: &str, hint: String| Error::usage(format!("--{flag} {text}: {problem}"), hint);
    let usual =
        || "write a size with its unit, such as 6.6GiB (binary) or 512MB (decimal)".to_owned();
    let value: f64 = number.parse().map_err(|_| refused("this is not a size", usual()))?;
    if unit.is_empty() {
        let hint = format!("give the unit, such as {number}MiB or {number}GB");
        return Err(refused("the size has no unit", hint));
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let hint = match unit.as_str() {
            "k" | "m" | "g" | "t" => {
                let unit = unit.to_ascii_uppercase();
                format!("write {number}{unit}iB (binary) or {number}{unit}B (decimal)")
            }
            _ => usual(),
        };
        return Err(refused("the unit is not known", hint));
    };
    let bytes = value * *factor as f64;
    if !(1.0..9e18).contains(&bytes) {
        return Err(refused("the size must be above zero, and below 8 EiB", usual()));
    }
    Ok(bytes as u64)
}

/// Token ids separated by commas or white space.
///
/// **Errors**: something else than an id, or none at all.
pub(crate) fn tokens(place: &str, text: &str) -> Result<Vec<u32>, Error> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let ids = words
        .map(|word| {
            word.parse().map_err(|_| {
                Error::usage(
                    format!("{place}: '{}' is not a token id", clipped(word)),
                    "ids are whole numbers separated by commas, such as 1,2,3",
                )
            })
        })
        .collect::<Result<Vec<u32>, Error>>()?;
    none_is_wrong(place, ids)
}

/// Token ids in a file: a JSON list, an object with such a list under `input_ids`, or numbers separated by
/// commas or white space.
///
/// **Errors**: the file cannot be read, or is none of these.
pub(crate) fn tokens_file(path: &Path) -> Result<Vec<u32>, Error> {
    let name = format!("'{}'", path.display());
    let bytes = read_capped(path, MAX_TOKENS_BYTES)?;
    let text = std::str::from_utf8(without_bom(&bytes))
        .map_err(|_| not_ids(&name, "it is not text in UTF-8"))?;
    if !text.trim_start().starts_with(['[', '{']) {
        return tokens(&name, text);
    }
    let value: Value =
        serde_json::from_str(text).map_err(|error| not_ids(&name, &error.to_string()))?;
    let list = match &value {
        Value::Object(object) => object
            .get("input_ids")
            .ok_or_else(|| not_ids(&name, "the object has no 'input_ids'"))?,
        other => other,
    };
    let Value::Array(list) = list else {
        return Err(not_ids(&name, "'input_ids' is not a list"));
    };
    let ids = list
        .iter()
        .map(|id| {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            number.ok_or_else(|| {
                let found = clipped(&id.to_string());
                not_ids(&name, &format!("'{found}' is not a token id"))
            })
        })
        .collect::<Result<Vec<u32>, Error>>()?;
    none_is_wrong(&name, ids)
}

fn not_ids(place: &str, problem: &str) -> Error {
    Error::usage(
        format!("{place} does not hold token ids: {problem}"),
        "write a JSON list such as [1, 2, 3], or {\"input_ids\": [1, 2, 3]}",
    )
}

fn none_is_wrong(place: &str, ids: Vec<u32>) -> Result<Vec<u32>, Error> {
    if ids.is_empty() {
        return Err(Error::usage(
            format!("{place} holds no token ids"),
            "give at least one, such as 1",
        ));
    }
    Ok(ids)
}

/// A file's bytes, `limit` at most.
pub(crate) fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => {
            Error::usage(format!("'{}' does not exist", path.display()), "check the path")
        }
        _ => Error::Io { verb: "read", what: path.display().to_string(), source },
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(io)?;
    if bytes.len() as u64 > limit {
        let message = format!("'{}' is larger than {limit} bytes", path.display());
        return Err(Error::Failed { message, hint: None });
    }
    Ok(bytes)
}

/// Bytes without the byte order mark that some editors put first.
pub(crate) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The precision profile asked for.
///
/// **Errors**: this version does not have it.
pub(crate) fn profile(name: &str) -> Result<(), Error> {
    match PROFILES.iter().position(|profile| *profile == name) {
        Some(0) => Ok(()),
        Some(_) => Err(Error::usage(
            format!("profile '{name}' comes in a later version"),
            "this version has --profile safe: weights in the precision of the source",
        )),
        None => Err(Error::usage(
            format!("there is no profile '{name}'"),
            format!("the profiles are {}; this version has only safe", PROFILES.join(", ")),
        )),
    }
}

/// The KV format asked for.
///
/// **Errors**: this version does not have it.
pub(crate) fn kv_format(name: &str) -> Result<KvFormat, Error> {
    const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::BF16];
    let lower = name.to_ascii_lowercase();
    let known = "this version has --kv f32, f16 and bf16 (the default)";
    match FORMATS.into_iter().find(|format| format.name() == lower) {
        Some(format) => Ok(format),
        None if KV_LATER.contains(&lower.as_str()) => {
            Err(Error::usage(format!("--kv {name} comes in a later version"), known))
        }
        None => Err(Error::usage(format!("there is no KV format '{name}'"), known)),
    }
}

/// Template variables, each `KEY=JSON`.
///
/// **Errors**: no `=`, or a value that is not JSON.
pub(crate) fn chat_variables(arguments: &[String]) -> Result<Map<String, Value>, Error> {
    let mut variables = Map::new();
    for argument in arguments {
        let (key, value) =
            argument.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                Error::usage(
                    format!("--chat-arg {argument} has no KEY="),
                    "write --chat-arg KEY=JSON, such as --chat-arg enable_thinking=false",
                )
            })?;
        let value = serde_json::from_str(value).map_err(|error| {
            Error::usage(
                format!("the value of --chat-arg {argument} is not JSON: {error}"),
                format!("text needs double quotes inside the shell's: '{key}=\"{value}\"'"),
            )
        })?;
        if ["messages", "tools", "documents", "add_generation_prompt"].contains(&key) {
            return Err(Error::usage(
                format!("--chat-arg {key}: that name belongs to the conversation itself"),
                "the prompt, --system and a chat's turns make the messages",
            ));
        }
        variables.insert(key.to_owned(), value);
    }
    Ok(variables)
}

/// Names among `candidates` that a mistyped one may have meant, nearest first.
pub(crate) fn similar<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Vec<&'a str> {
    let wanted = typed.to_lowercase();
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|name| (distance(&wanted, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.chars().count().max(6) / 3).min(6))
        .collect();
    near.sort();
    near.into_iter().map(|(_, name)| name).collect()
}

/// Edits that turn one text into another: a character added, dropped or replaced (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(256).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, c) in a.chars().take(256).enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, d) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *d);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// An argument as messages show it.
pub(crate) fn shown(argument: &OsStr) -> String {
    clipped(&argument.to_string_lossy())
}

fn clipped(text: &str) -> String {
    if text.chars().count() <= 60 {
        return text.to_owned();
    }
    text.chars().take(60).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_of<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.expect_err("refused").hint().expect("has a hint")
    }

    #[test]
    fn r68_sizes_have_units_and_a_bare_number_is_refused_with_a_hint() {
        assert_eq!(size("budget", "512MiB").expect("a size"), 512 << 20);
        assert_eq!(size("budget", "1.5GB").expect("a size"), 1_500_000_000);
        assert_eq!(size("budget", "6.6 gib").expect("a size"), 7_086_696_038);
        assert_eq!(
            hint_of(size("budget", "20000000")),
            "give the unit, such as 20000000MiB or 20000000GB"
        );
        assert_eq!(hint_of(size("budget", "6G")), "write 6GiB (binary) or 6GB (decimal)");
        for bad in ["1.5", "", "GiB", "-1GiB", "1..5GiB", "0GiB", "1PiB", "9e9GiB", "99999999TiB"] {
            assert!(size("budget", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_are_numbers_between_commas_or_spaces() {
        assert_eq!(tokens("--tokens", "1, 2,3\n4").expect("ids"), [1, 2, 3, 4]);
        for bad in ["", "1,x", "-1", "1.5", "4294967296"] {
            assert!(tokens("--tokens", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn profiles_that_come_later_are_told_from_unknown_ones() {
        assert!(profile("safe").is_ok());
        let later = profile("balanced").expect_err("later").to_string();
        assert_eq!(later, "profile 'balanced' comes in a later version");
        assert!(hint_of(profile("blanced")).contains("balanced"));
        assert!(kv_format("q8").expect_err("later").to_string().contains("later version"));
    }

    #[test]
    fn similar_names_are_found_nearest_first() {
        let names = ["smollm2.thin", "llama.thin", "smol.thin"];

        assert_eq!(similar("smoll.thin", names), ["smol.thin", "smollm2.thin"]);
        assert!(similar("readme.md", names).is_empty());
    }

    #[test]
    fn chat_variables_are_json() {
        let given = ["a=false".to_owned(), "b=\"x=y\"".to_owned()];

        let variables = chat_variables(&given).expect("JSON");

        assert_eq!(variables["a"], Value::Bool(false));
        assert_eq!(variables["b"], Value::String("x=y".into()));
        assert!(chat_variables(&["a=x".to_owned()]).is_err());
    }
}
