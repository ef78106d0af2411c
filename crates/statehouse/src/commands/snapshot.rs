//! `statehouse snapshot | snapshots [PATH]`: copies of a database that were proved to be good.

use super::Context;
use crate::args::{Snapshot, Target};
use crate::exit;
use crate::failure::{Failure, Result, code};

pub(crate) fn take(_context: &Context, _args: &Snapshot) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot take a snapshot yet"))
}

pub(crate) fn list(_context: &Context, _args: &Target) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot list snapshots yet"))
}
