//! `retired capture`, `retired list`: what is saved before its process ends.

use crate::args::{RetiredCapture, Target};
use crate::commands::Context;
use crate::exit;
use crate::failure::{Failure, Result, code};

pub(crate) fn capture(_context: &Context, _args: &RetiredCapture) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot capture yet"))
}

pub(crate) fn list(_context: &Context, _args: &Target) -> Result {
    Err(Failure::new(exit::FAILED, code::IO, "this version cannot list captures yet"))
}
