//! Windows: other processes are listed by the Restart Manager, which this version does not do yet, and it says so.

use super::{Holder, Report, Signs};
use crate::error::{Error, Result};
use crate::family::Family;

fn unknown<T>(family: &Family) -> Result<T> {
    let why = std::io::Error::new(std::io::ErrorKind::Unsupported, "this version cannot look at processes on Windows");
    Err(Error::io("find the holders of", &family.main(), why))
}

pub(super) fn scan(family: &Family) -> Result<Report> {
    unknown(family)
}

/// Open files cannot be unlinked or replaced on Windows, so nobody can be left on a retired generation.
pub(super) fn dangerous(_family: &Family, _among: Option<&[i32]>) -> Result<Vec<Holder>> {
    Ok(Vec::new())
}

pub(super) fn mapping_index(family: &Family) -> Result<Vec<i32>> {
    unknown(family)
}

pub(super) fn signs(family: &Family) -> Result<Signs> {
    unknown(family)
}
