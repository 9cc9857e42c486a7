//! The crate's error: one variant per domain, its source kept, and the hint of whichever it wraps.

/// Anything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An archive is damaged, foreign or of a newer version.
    #[error(transparent)]
    Format(#[from] crate::format::Error),
    /// A model description has a number that cannot be right.
    #[error(transparent)]
    Spec(#[from] crate::model::SpecError),
    /// A model does not hold what its description promises.
    #[error(transparent)]
    Plan(#[from] crate::plan::Error),
    /// A device refused.
    #[error(transparent)]
    Backend(#[from] crate::backend::Error),
    /// A step cannot be taken.
    #[error(transparent)]
    Engine(#[from] crate::engine::Error),
}

impl Error {
    /// What the user could do about it, in one line.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Format(error) => error.hint(),
            Error::Backend(error) => error.hint(),
            Error::Engine(error) => error.hint(),
            Error::Spec(_) | Error::Plan(_) => None,
        }
    }
}

/// Result with the crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
