//! `statehouse incidents [PATH]`: what happened to a database, until somebody has looked at it.

use super::Context;
use crate::args::Incidents;
use crate::exit;
use crate::failure::{Failure, Result, code};

pub(crate) fn run(_context: &Context, _args: &Incidents) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot list incidents yet"))
}
