//! `retired show`, `retired merge`: what only a capture has, and bringing it back.

use crate::args::{RetiredMerge, RetiredShow};
use crate::commands::Context;
use crate::exit;
use crate::failure::{Failure, Result, code};

pub(crate) fn show(_context: &Context, _args: &RetiredShow) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot compare yet"))
}

pub(crate) fn merge(_context: &Context, _args: &RetiredMerge) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot merge yet"))
}
