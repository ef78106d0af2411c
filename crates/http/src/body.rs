//! Request bodies: bounded in bytes and in time, and never read further than the bound.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::problem::{Code, Problem};

/// Reads a body of at most `bytes` within `time`. One that announces more is refused before its first byte is read.
///
/// # Errors
/// `too_large`, `timeout`, or `invalid_request` when the client breaks off.
pub async fn read_body(body: Body, bytes: usize, time: Duration) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Code::TooLarge, format!("the body is larger than {bytes} bytes"));
    if body.size_hint().lower() > bytes as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(time, Limited::new(body, bytes).collect()).await {
        Ok(Ok(all)) => Ok(all.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(e)) => {
            Err(Problem::new(Code::InvalidRequest, "the body did not arrive whole").with_detail(e.to_string()))
        }
        Err(_) => {
            Err(Problem::new(Code::Timeout, format!("the body did not arrive within {} seconds", time.as_secs_f64())))
        }
    }
}
