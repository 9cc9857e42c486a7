//! The crate's error: one variant per domain, its source kept, and the hint of whichever it wraps.

/// Anything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An archive is damaged, foreign or of a newer version.
    #[error(transparent)]
    Format(#[from] crate::format::Error),
    /// A source cannot be read.
    #[error(transparent)]
    Import(#[from] crate::import::Error),
    /// A model description has a number that cannot be right.
    #[error(transparent)]
    Spec(#[from] crate::model::SpecError),
}

impl Error {
    /// What the user could do about it, in one line.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Format(error) => error.hint(),
            Error::Import(error) => error.hint(),
            Error::Spec(_) => None,
        }
    }
}

/// Result with the crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
