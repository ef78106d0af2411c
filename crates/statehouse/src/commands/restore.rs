//! `statehouse restore ID|FILE [PATH]`: a good file in the place of a database.

use super::Context;
use crate::args::Restore;
use crate::exit;
use crate::failure::{Failure, Result, code};

pub(crate) fn run(_context: &Context, _args: &Restore) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot restore yet"))
}
