//! How far long work is, for whoever watches.

/// What long work tells while it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Another step begins.
    Begins {
        /// What is done in it, as a person would say it ("copying").
        what: &'static str,
        /// How many bytes there are to do, if that is known.
        bytes: Option<u64>,
    },
    /// So many bytes of the step are done.
    At(u64),
}

/// Is told. Called often, so it must be quick.
pub type Watch<'a> = &'a dyn Fn(Progress);
