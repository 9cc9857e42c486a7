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
    /// A model does not hold what its description promises.
    #[error(transparent)]
    Plan(#[from] crate::plan::Error),
    /// A device refused.
    #[error(transparent)]
    Backend(#[from] crate::backend::Error),
    /// A step cannot be taken.
    #[error(transparent)]
    Engine(#[from] crate::engine::Error),
    /// A tokenizer is damaged, or cannot encode.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::Error),
    /// A chat template is damaged, or refuses a conversation.
    #[error(transparent)]
    Chat(#[from] crate::chat::Error),
    /// Stop strings that cannot be honoured.
    #[error(transparent)]
    Detokenize(#[from] crate::detokenize::Error),
    /// A sampler setting is out of range.
    #[error(transparent)]
    Sample(#[from] crate::sample::Error),
    /// Text generation lacks something.
    #[error(transparent)]
    Generate(#[from] crate::generate::Error),
}

impl Error {
    /// What the user could do about it, in one line.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Format(error) => error.hint(),
            Error::Import(error) => error.hint(),
            Error::Backend(error) => error.hint(),
            Error::Engine(error) => error.hint(),
            Error::Tokenizer(error) => error.hint(),
            Error::Chat(error) => error.hint(),
            Error::Detokenize(error) => error.hint(),
            Error::Generate(error) => error.hint(),
            Error::Sample(_) | Error::Spec(_) | Error::Plan(_) => None,
        }
    }
}

/// Result with the crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
