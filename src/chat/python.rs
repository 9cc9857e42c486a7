//! Values written the way Python writes them, since chat templates were made for Python's Jinja.
//!
//! `tojson` follows `json.dumps(ensure_ascii=False)`, and printing follows `str()` (`None`, `True`, `['a']`). Every
//! value visited costs fuel: a template can build a list that holds itself twice, forty times over, in a few
//! steps, and writing it out would not end.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// A JSON value as the template sees it; objects keep their order.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => list.iter().map(value).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, item)| (key.as_str(), value(item))))
        }
    }
}

/// The `tojson` filter with the arguments of Hugging Face's.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let indent = match indent {
        Some(indent) if !indent.is_none() && !indent.is_undefined() => Some(indent_unit(&indent)?),
        _ => None,
    };
    let (mut item, mut key) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(pair) = separators.filter(|pair| !pair.is_none()) {
        item = pair.get_item_by_index(0)?.to_string();
        key = pair.get_item_by_index(1)?.to_string();
    }
    let style = Json {
        indent,
        item,
        key,
        ascii: ensure_ascii == Some(true),
        sorted: sort_keys == Some(true),
    };
    let mut out = String::new();
    style.write(state, value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// One level of indentation: a number of spaces, or the text itself.
fn indent_unit(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    match indent.as_usize() {
        Some(width) if width <= 64 => Ok(" ".repeat(width)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: indent must be a text or a number up to 64",
        )),
    }
}

struct Json {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Json {
    fn write(
        &self,
        state: &State,
        value: &Value,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        visit(state, depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(state, value.as_str().unwrap_or_default(), out)?,
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.list(state, depth, ['{', '}'], keys.len(), out, |json, index, out| {
                    let name = match keys[index].kind() {
                        ValueKind::Bool | ValueKind::None => {
                            str_of(state, &keys[index])?.to_lowercase()
                        }
                        _ => keys[index].to_string(),
                    };
                    json.string(state, &name, out)?;
                    out.push_str(&json.key);
                    json.write(state, &value.get_item(&keys[index])?, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(state, depth, ['[', ']'], items.len(), out, |json, index, out| {
                    json.write(state, &items[index], depth + 1, out)
                })?;
            }
            kind => {
                let detail = format!("a value of type {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn list(
        &self,
        state: &State,
        depth: usize,
        brackets: [char; 2],
        count: usize,
        out: &mut String,
        mut each: impl FnMut(&Self, usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(brackets[0]);
        for index in 0..count {
            if index > 0 {
                out.push_str(&self.item);
            }
            let around = self.item.len() + self.key.len();
            state.consume_fuel(around as u64 / 64)?;
            self.line(state, depth + 1, out)?;
            each(self, index, out)?;
        }
        if count > 0 {
            self.line(state, depth, out)?;
        }
        out.push(brackets[1]);
        state.consume_fuel(count as u64)
    }

    fn line(&self, state: &State, depth: usize, out: &mut String) -> Result<(), Error> {
        if let Some(unit) = &self.indent {
            state.consume_fuel((unit.len() * depth) as u64 / 64)?;
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(unit));
        }
        Ok(())
    }

    fn string(&self, state: &State, text: &str, out: &mut String) -> Result<(), Error> {
        state.consume_fuel(text.len() as u64 / 64)?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

/// Prints a value into the rendered text, as `str()` does; undefined prints nothing.
pub(super) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&str_of(state, value)?),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

/// The `string` filter: `str()`.
pub(super) fn string(state: &State, value: &Value) -> Result<Value, Error> {
    Ok(Value::from(str_of(state, value)?))
}

/// The `iterable` test; minijinja's own says yes to none as well.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

pub(super) fn str_of(state: &State, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => repr(state, value, 0, &mut out)?,
    }
    Ok(out)
}

fn repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    visit(state, depth)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quoted(state, value.as_str().unwrap_or_default(), out)?,
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(state, &item, depth + 1, out)?;
            }
            out.push(']');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Text in quotes, as `repr()` writes it: single ones unless only double ones avoid a backslash.
fn quoted(state: &State, text: &str, out: &mut String) -> Result<(), Error> {
    state.consume_fuel(text.len() as u64 / 64)?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
    Ok(())
}

/// Pays for one value, and stops nesting that could exhaust the stack.
fn visit(state: &State, depth: usize) -> Result<(), Error> {
    if depth > 200 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a value is nested more than 200 deep",
        ));
    }
    state.consume_fuel(1)
}

/// A number as Python prints it: `1`, `1.0`, `1e-05`, `1e+16`.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        return if number.is_nan() { "NaN".into() } else { format!("{sign}Infinity") };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
