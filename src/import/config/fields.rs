//! The values of a JSON object by name and type, and the memory of which ones were asked for.
//!
//! Python writes `1` and `1.0`, null and nothing at all, for the same thing; so both are accepted, and
//! whatever is of another type is an error that names the field.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Problem;

/// An object of a config file.
pub(super) struct Fields<'a> {
    /// What stands before a field's name in messages: nothing, or "rope_scaling.".
    prefix: &'static str,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(prefix: &'static str, map: &'a Map<String, Value>) -> Self {
        Fields { prefix, map, read: RefCell::default() }
    }

    /// The full name of a field.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Whether the key is there, with null or a value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// A value that is not null.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.read.borrow_mut().insert(key);
        (!value.is_null()).then_some(value)
    }

    /// The keys nobody asked for, with their values.
    pub(super) fn unread(&self) -> Vec<(&'a str, &'a Value)> {
        let read = self.read.borrow();
        self.map
            .iter()
            .map(|(key, value)| (key.as_str(), value))
            .filter(|(key, _)| !read.contains(key))
            .collect()
    }

    pub(super) fn u32(&self, key: &str) -> Result<Option<u32>, Problem> {
        self.typed(key, "a whole number from 0 to 4294967295", as_u32)
    }

    pub(super) fn f64(&self, key: &str) -> Result<Option<f64>, Problem> {
        self.typed(key, "a finite number", |value| {
            value.as_f64().filter(|number| number.is_finite())
        })
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, Problem> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        self.typed(key, "a text", Value::as_str)
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, Problem> {
        self.typed(key, "an object", Value::as_object)
    }

    pub(super) fn array(&self, key: &str) -> Result<Option<&'a Vec<Value>>, Problem> {
        self.typed(key, "a list", Value::as_array)
    }

    /// A number that must be there.
    pub(super) fn required_u32(&self, key: &str) -> Result<u32, Problem> {
        self.u32(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number that must be there.
    pub(super) fn required_f64(&self, key: &str) -> Result<f64, Problem> {
        self.f64(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn missing(&self, key: &str) -> Problem {
        Problem::Missing { field: self.name(key) }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let typed = convert(value).ok_or_else(|| Problem::Wrong {
            field: self.name(key),
            expected,
            found: brief(value),
        })?;
        Ok(Some(typed))
    }
}

/// A whole number, whether written `1` or `1.0`.
pub(super) fn as_u32(value: &Value) -> Option<u32> {
    match value.as_u64() {
        Some(number) => u32::try_from(number).ok(),
        None => value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number))
            .map(|number| number as u32),
    }
}

/// A value as text, cut to what fits a message.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_may_be_written_as_floats_and_nothing_else() {
        let number = |text: &str| as_u32(&serde_json::from_str(text).expect("JSON"));

        assert_eq!(number("64"), Some(64));
        assert_eq!(number("64.0"), Some(64));
        assert_eq!(number("4294967295"), Some(u32::MAX));
        for wrong in ["64.5", "-1", "4294967296", "1099511627776", "1e300", "\"64\"", "true", "[]"]
        {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
