//! macOS: other processes are listed with libproc, which this version does not do yet, and it says so.

use super::{Holder, Report, Signs};
use crate::error::{Error, Result};
use crate::family::Family;

fn unknown<T>(family: &Family) -> Result<T> {
    let why = std::io::Error::new(std::io::ErrorKind::Unsupported, "this version cannot look at processes on macOS");
    Err(Error::io("find the holders of", &family.main(), why))
}

pub(super) fn scan(family: &Family) -> Result<Report> {
    unknown(family)
}

/// Opening goes on without this look; the generation checks around every commit stay in force.
pub(super) fn dangerous(_family: &Family, _among: Option<&[i32]>) -> Result<Vec<Holder>> {
    Ok(Vec::new())
}

pub(super) fn mapping_index(family: &Family) -> Result<Vec<i32>> {
    unknown(family)
}

pub(super) fn signs(family: &Family) -> Result<Signs> {
    unknown(family)
}
