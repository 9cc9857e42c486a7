//! JSON files of a checkpoint: read whole, capped, a byte order mark tolerated, parse errors never hidden.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};

use super::{Error, detect};

/// A config above this is refused before it is parsed: as values it takes up to 30 times its size.
pub(super) const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// An index above this is refused before it is parsed.
pub(super) const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Reads and parses a file.
///
/// **Errors**: it cannot be read, is too large, is a placeholder for something else, or is not such JSON.
pub(super) fn read<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, Error> {
    let bytes = detect::read_capped(path, limit)?;
    detect::refuse_placeholder(path, &bytes)?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    serde_json::from_slice(text).map_err(|problem| Error::Json { path: path.to_owned(), problem })
}

/// An object in the order of the file, whose keys are unique.
#[derive(Debug)]
pub(super) struct UniqueMap<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut entries = Vec::new();
                let mut seen = HashSet::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("duplicate key '{key}'")));
                    }
                    entries.push((key, value));
                }
                Ok(UniqueMap(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}
