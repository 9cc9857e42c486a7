//! Case files: `tests/cases/NAME.toml` as lists of numbers to build a kernel from.
//!
//! Keys above the first `[[case]]` hold for all cases; a case overrides them. A list stands for
//! alternatives, and a case for every combination of them; a list within a list is one alternative that is
//! a list. A case says which keys it knows by reading them: one that nobody read is a mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use toml::{Table, Value};

/// The cases of one `[[case]]`, under its name.
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) cases: Vec<Case>,
}

/// One combination of values.
pub(crate) struct Case {
    values: BTreeMap<String, Value>,
    read: Mutex<BTreeSet<String>>,
}

/// Reads a case file.
pub(crate) fn parse(text: &str) -> Result<Vec<Family>, String> {
    let mut shared: Table = text.parse().map_err(|error| format!("{error}"))?;
    let Some(Value::Array(families)) = shared.remove("case") else {
        return Err("there is no [[case]]".into());
    };
    families
        .into_iter()
        .map(|family| {
            let Value::Table(mut own) = family else { return Err("a case is no table".into()) };
            let Some(Value::String(name)) = own.remove("name") else {
                return Err("a case has no name".into());
            };
            let mut values = shared.clone();
            values.extend(own);
            Ok(Family { name, cases: combinations(values) })
        })
        .collect()
}

/// Every choice of one alternative per key.
fn combinations(values: Table) -> Vec<Case> {
    let mut all = vec![BTreeMap::new()];
    for (key, value) in values {
        let alternatives = match value {
            Value::Array(list) => list,
            single => vec![single],
        };
        all = all
            .iter()
            .flat_map(|chosen: &BTreeMap<String, Value>| {
                alternatives.iter().map(|value| {
                    let mut chosen = chosen.clone();
                    chosen.insert(key.clone(), value.clone());
                    chosen
                })
            })
            .collect();
    }
    all.into_iter().map(Case::new).collect()
}

impl Case {
    fn new(values: BTreeMap<String, Value>) -> Self {
        Case { values, read: Mutex::default() }
    }

    /// A case written in code, for facts that no random numbers can state.
    pub(crate) fn of(values: &str) -> Self {
        let values: Table = values.parse().expect("a valid table");
        Case::new(values.into_iter().collect())
    }

    /// The values as they are written.
    pub(crate) fn describe(&self) -> String {
        let pairs: Vec<String> =
            self.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        pairs.join(", ")
    }

    /// Fails where a key was never read: it is misspelt, or means nothing to this kernel.
    pub(crate) fn check_all_read(&self) -> Result<(), String> {
        let read = self.read.lock().expect("a case is used by one trial");
        let unread: Vec<&String> = self.values.keys().filter(|key| !read.contains(*key)).collect();
        if unread.is_empty() { Ok(()) } else { Err(format!("nothing reads {unread:?}")) }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.read.lock().expect("a case is used by one trial").insert(key.to_owned());
        self.values.get(key)
    }

    pub(crate) fn int(&self, key: &str) -> u32 {
        let value = self.value(key).unwrap_or_else(|| panic!("the case has no '{key}'"));
        integer(key, value)
    }

    pub(crate) fn int_or(&self, key: &str, default: u32) -> u32 {
        self.value(key).map_or(default, |value| integer(key, value))
    }

    pub(crate) fn float(&self, key: &str) -> Option<f64> {
        self.value(key).map(|value| match value {
            Value::Float(value) => *value,
            Value::Integer(value) => *value as f64,
            other => panic!("'{key}' is {other}, not a number"),
        })
    }

    pub(crate) fn float_or(&self, key: &str, default: f32) -> f32 {
        self.float(key).map_or(default, |value| value as f32)
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.value(key)
            .is_some_and(|value| value.as_bool().unwrap_or_else(|| panic!("'{key}' is no bool")))
    }

    pub(crate) fn text_or<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.value(key).map_or(default, |value| {
            value.as_str().unwrap_or_else(|| panic!("'{key}' is {value}, not a text"))
        })
    }

    /// A list, or a single number as a list of one.
    pub(crate) fn list(&self, key: &str) -> Vec<u32> {
        match self.value(key).unwrap_or_else(|| panic!("the case has no '{key}'")) {
            Value::Array(list) => list.iter().map(|value| integer(key, value)).collect(),
            value => vec![integer(key, value)],
        }
    }
}

fn integer(key: &str, value: &Value) -> u32 {
    value
        .as_integer()
        .and_then(|value| u32::try_from(value).ok())
        .unwrap_or_else(|| panic!("'{key}' is {value}, not a number from 0 to 2^32 - 1"))
}

/// What the reader of case files itself must do.
pub(crate) fn self_test() -> Result<(), String> {
    let families = parse("rows = [1, 2]\n[[case]]\nname = \"a\"\nn = [3, 4]\nl = [[5, 6]]")?;
    let found: Vec<String> = families[0].cases.iter().map(Case::describe).collect();
    if found.len() != 4 || found[1] != "l = [5, 6], n = 3, rows = 2" {
        return Err(format!("combinations: {found:?}"));
    }
    if families[0].cases[0].check_all_read().is_ok() {
        return Err("keys that nothing read went unnoticed".into());
    }
    Ok(())
}
