//! The answer of a dry run: what would be done, and what it would be refused for now. It is never refused itself.

use serde::Serialize;

use super::Context;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::text::escape_line;

#[derive(Serialize)]
struct Dry<T: Serialize> {
    #[serde(flatten)]
    plan: T,
    refused: Option<Failure>,
}

/// Answers with a plan, from which `refused` was taken out. `text` says the plan to people.
pub(super) fn answer<T: Serialize>(
    context: &Context,
    plan: T,
    refused: Option<Failure>,
    text: impl FnOnce(&T) -> String,
) -> Result {
    context.output.answer(&Dry { plan, refused }, |d| {
        let mut out = text(&d.plan);
        if let Some(refused) = &d.refused {
            out.push_str(&format!("and would be refused now: {}\n", escape_line(&refused.message)));
            for line in [&refused.detail, &refused.hint].into_iter().filter(|line| !line.is_empty()) {
                out.push_str(&format!("  {}\n", escape_line(line)));
            }
        }
        out
    });
    Ok(exit::OK)
}
