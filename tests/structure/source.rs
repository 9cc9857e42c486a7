//! Rust source seen as text: what is code, what is comment or literal, what is test.
//!
//! A full parser would be a dependency; the rules of `structure.rs` need only to know that a word
//! is code. Both functions keep every line break, so line numbers stay those of the file.

/// The source with comments and the contents of string and character literals blanked.
pub(crate) fn code(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !word_before(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match char_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1; // a lifetime
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(out).expect("only whole literals and comments were blanked")
}

/// `code` without the items that `#[cfg(test)]` or `#[cfg(all(test, ..))]` stands before.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    for mark in ["#[cfg(test)]", "#[cfg(all(test,"] {
        let mut from = 0;
        while let Some(found) = code[from..].find(mark) {
            let start = from + found;
            let end = item_end(code.as_bytes(), start);
            for byte in &mut out[start..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            from = end;
        }
    }
    String::from_utf8(out).expect("items start and end at ASCII characters")
}

/// Byte offsets where `word` stands alone in `text`, not as a part of a longer identifier.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !word_before(text.as_bytes(), at)
            && !text.as_bytes().get(at + word.len()).is_some_and(|&b| is_word(b))
    })
}

/// The line (from 1) of a byte offset.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count()
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn word_before(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n)
}

/// Block comments nest in Rust.
fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"..."`, `r#"..."#` and so on; `None` where `r` starts something else (`r#type`).
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut end = open + 1;
    while end < bytes.len() {
        let closing = &bytes[end + 1..bytes.len().min(end + 1 + hashes)];
        if bytes[end] == b'"' && closing.len() == hashes && closing.iter().all(|&b| b == b'#') {
            return Some(end + 1 + hashes);
        }
        end += 1;
    }
    Some(bytes.len())
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes.get(at + 3..)?.iter().position(|&b| b == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    let text = std::str::from_utf8(bytes.get(at + 1..)?).ok()?;
    let width = text.chars().next()?.len_utf8();
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + width + 2)
}

/// The end of the item whose attributes start at `at`: its closing brace or its semicolon.
fn item_end(bytes: &[u8], mut at: usize) -> usize {
    let (mut braces, mut others) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'(' | b'[' => others += 1,
            b')' | b']' => others -= 1,
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces == 0 {
                    return at + 1;
                }
            }
            b';' if braces == 0 && others == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

mod tests {
    use super::*;

    #[test]
    fn code_blanks_comments_and_literals_but_not_lifetimes() {
        let source =
            "let a = \"x.unwrap()\"; // unsafe\nfn f<'a>(c: &'a str) { '\"'; r#\"dbg!(\"#; }";

        let code = code(source);

        assert!(!code.contains("unwrap") && !code.contains("// unsafe") && !code.contains("dbg"));
        assert!(code.contains("fn f<'a>(c: &'a str) {") && code.ends_with('}'));
        assert_eq!(code.len(), source.len());
    }

    #[test]
    fn code_ends_nested_comments_and_escaped_quotes() {
        let code = code("/* a /* b */ c */ one(); \"\\\"two\"; '\\''; three();");

        assert_eq!(code.split_whitespace().collect::<String>(), "one();;;three();");
    }

    #[test]
    fn without_tests_drops_the_test_module_and_keeps_what_follows() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { x.unwrap() } }\nfn c() {}\n";

        let kept = without_tests(code);

        assert_eq!(kept.split_whitespace().collect::<Vec<_>>().join(" "), "fn a() {} fn c() {}");
        assert_eq!(line_of(&kept, kept.find("fn c").expect("kept")), 4);
    }

    #[test]
    fn words_does_not_find_parts_of_identifiers() {
        assert_eq!(words("unsafe_code unsafe not_unsafe", "unsafe").collect::<Vec<_>>(), [12]);
    }
}
