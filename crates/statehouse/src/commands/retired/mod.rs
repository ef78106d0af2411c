//! `statehouse retired`: what processes wrote into deleted or replaced files.

mod capture;
mod merge;

use super::Context;
use crate::args::Retired;
use crate::failure::Result;

pub(crate) fn run(context: &Context, command: &Retired) -> Result {
    match command {
        Retired::Capture(args) => capture::capture(context, args),
        Retired::List(target) => capture::list(context, target),
        Retired::Show(args) => merge::show(context, args),
        Retired::Merge(args) => merge::merge(context, args),
    }
}
