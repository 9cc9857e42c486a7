//! Where the prompt comes from: ids, an argument, a file, or stdin, which is read only where nothing else
//! was given, so that a silent pipe never makes a command wait.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read};
use std::path::Path;

use thintensor::tokenizer::Tokenizer;

use super::args::RunArgs;
use super::error::Error;
use super::values;

/// A prompt longer than this does not fit any model.
const MAX_PROMPT_BYTES: u64 = 64 << 20;
/// A first look at a long text takes this many bytes for each token of the context.
const BYTES_PER_TOKEN: usize = 16;

/// What to answer or complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Token ids.
    Ids(Vec<u32>),
    /// A text.
    Text(String),
    /// A person at a terminal.
    Person,
}

/// Finds the prompt of `run`; `argument` is the one among the arguments.
///
/// **Errors**: there is none, several, or one that is not text.
pub(crate) fn input(args: &RunArgs, argument: Option<&OsStr>) -> Result<Input, Error> {
    if args.ids.given() {
        if argument.is_some() || args.file.is_some() {
            return Err(Error::usage(
                "both token ids and a prompt were given",
                "leave one of them out",
            ));
        }
        return Ok(args.ids.ids()?.map_or(Input::Person, Input::Ids));
    }
    if let Some(argument) = argument {
        let text = argument.to_str().ok_or_else(|| {
            Error::usage(
                "the prompt is not text in UTF-8",
                "write it to a file in UTF-8 and use --file",
            )
        })?;
        return not_empty(text.to_owned(), "the prompt");
    }
    match &args.file {
        Some(path) if path == Path::new("-") => from(std::io::stdin().lock(), "stdin"),
        Some(path) => {
            let shown = path.display().to_string();
            let file = std::fs::File::open(path).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => {
                    Error::usage(format!("'{shown}' does not exist"), "check the path")
                }
                _ => Error::Io { verb: "read", what: shown.clone(), source },
            })?;
            from(file, &shown)
        }
        None if std::io::stdin().is_terminal() => Ok(Input::Person),
        None => from(std::io::stdin().lock(), "stdin"),
    }
}

/// Reads a prompt to its end, or as much of it as certainly fits no model.
fn from(reader: impl Read, place: &str) -> Result<Input, Error> {
    let mut bytes = Vec::new();
    reader.take(MAX_PROMPT_BYTES).read_to_end(&mut bytes).map_err(|source| Error::Io {
        verb: "read",
        what: place.into(),
        source,
    })?;
    if bytes.len() as u64 == MAX_PROMPT_BYTES {
        // What was cut may be half a character; the text is far too long anyway, and is refused for that.
        while std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none()) {
            bytes.pop();
        }
    }
    not_empty(decoded(bytes, place)?, place)
}

/// Bytes as text, without a byte order mark and without the line end that editors and `echo` add.
fn decoded(bytes: Vec<u8>, place: &str) -> Result<String, Error> {
    let text = std::str::from_utf8(values::without_bom(&bytes)).map_err(|error| Error::Failed {
        message: format!("{place} is not text in UTF-8: byte {} is wrong", error.valid_up_to()),
        hint: Some("convert it to UTF-8 first".into()),
    })?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn not_empty(text: String, place: &str) -> Result<Input, Error> {
    if text.trim().is_empty() {
        return Err(Error::usage(
            format!("there is nothing to answer: {place} is empty"),
            "give a prompt, such as: thin run \"Once upon a time\"",
        ));
    }
    Ok(Input::Text(text))
}

/// The error for a prompt that does not fit.
pub(crate) fn too_long(tokens: usize, context: u32, trained: u32) -> Error {
    does_not_fit(format!("{tokens}"), tokens as u64, context, trained)
}

fn does_not_fit(counted: String, tokens: u64, context: u32, trained: u32) -> Error {
    let hint = if tokens <= u64::from(trained) {
        format!("use --context {tokens} or more (at most {trained}), or a shorter prompt")
    } else {
        format!("the model was trained for {trained} tokens; use a shorter prompt")
    };
    Error::usage(format!("the prompt has {counted} tokens, but the context holds {context}"), hint)
}

/// Refuses a text that is certainly too long after a look at its beginning, because tokenising megabytes
/// only to refuse them takes long.
///
/// **Errors**: the beginning alone has more tokens than the context holds.
pub(crate) fn check_length(
    tokenizer: &Tokenizer,
    text: &str,
    context: u32,
    trained: u32,
) -> Result<(), Error> {
    let mut look = BYTES_PER_TOKEN.saturating_mul(context as usize);
    while look < text.len() {
        let end = (0..=look).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let start = text.get(..end).unwrap_or_default();
        let found = tokenizer.encode_ordinary(start).map_err(thintensor::Error::from)?.len();
        // The last tokens of a beginning may be others than those of the whole.
        let certain = found.saturating_sub(16);
        if certain > context as usize {
            let counted = format!("more than {certain}");
            return Err(does_not_fit(counted, text.len() as u64, context, trained));
        }
        look = look.saturating_mul(4);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_and_a_byte_order_mark_are_dropped() {
        assert_eq!(decoded(b"hi\n".to_vec(), "stdin").expect("text"), "hi");
        assert_eq!(decoded(b"\xef\xbb\xbfhi\r\n".to_vec(), "stdin").expect("text"), "hi");
        assert_eq!(decoded(b"hi\n\n".to_vec(), "stdin").expect("text"), "hi\n");
    }

    #[test]
    fn r83_text_that_is_not_utf8_is_refused_with_the_place() {
        let error = decoded(b"ok\xff\xfe".to_vec(), "stdin").expect_err("not UTF-8");

        assert_eq!(error.to_string(), "stdin is not text in UTF-8: byte 2 is wrong");
    }

    #[test]
    fn r82_a_prompt_too_long_names_both_numbers_and_what_to_do() {
        let fits_trained = too_long(600, 512, 2048);
        let beyond = too_long(3000, 512, 2048);

        assert_eq!(
            fits_trained.to_string(),
            "the prompt has 600 tokens, but the context holds 512"
        );
        assert!(fits_trained.hint().is_some_and(|hint| hint.contains("--context 600")));
        assert!(beyond.hint().is_some_and(|hint| hint.contains("2048")));
        assert_eq!(beyond.exit().code(), 2);
    }
}
