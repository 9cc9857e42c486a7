//! Names that come from a file and go to a disk or a terminal.

/// Bytes of the longest tensor name.
pub(super) const MAX_TENSOR_NAME: usize = 512;

/// What `extract` calls the safetensors file of a source file.
#[must_use]
pub fn extracted_name(source: &str) -> String {
    if source.ends_with(".safetensors") {
        return source.into();
    }
    format!("{source}.safetensors")
}

/// Whether a name can be a file in any folder of any system, and nothing but a file in that folder.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or("").trim_end().to_uppercase();
    let device = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
        || ["COM", "LPT"].iter().any(|port| {
            stem.strip_prefix(port).is_some_and(|number| {
                matches!(number, "¹" | "²" | "³")
                    || (number.len() == 1 && number.bytes().all(|byte| byte.is_ascii_digit()))
            })
        });
    let forbidden = |c: char| c.is_control() || r#"/\:*?"<>|"#.contains(c);
    !name.is_empty()
        && name.len() <= 200
        && !device
        && !name.contains(forbidden)
        && !name.starts_with(['.', ' '])
        && !name.ends_with(['.', ' '])
}

/// A name as messages show it: a hostile one is as long as the file, and there may be many messages.
pub(super) fn clip(name: &str) -> String {
    if name.len() <= MAX_TENSOR_NAME {
        return name.into();
    }
    let mut text: String = name.chars().take(64).collect();
    text.push_str("...");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_accepted_and_names_that_go_elsewhere_refused() {
        for good in ["config.json", "model-00001-of-00002.safetensors", "LICENSE", "a b.txt", "COM"]
        {
            assert!(is_plain_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            "/etc/passwd",
            "C:x",
            "a\0b",
            "nul",
            "NUL.txt",
            "com1",
            "lpt9.json",
            "x.",
            "x ",
            ".hidden",
            "a\nb",
            "a|b",
        ] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
        assert!(!is_plain_name(&"x".repeat(201)));
    }
}
