//! What people see. Every page is complete without JavaScript; maud escapes whatever is put into it.

mod conversation;
mod incidents;
mod layout;
mod lists;
mod search;
mod store;

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use statehouse_http::Problem;

pub(crate) use conversation::{conversation, message};
pub(crate) use incidents::{NOTICE, close_incident, incident, incidents, notice_of};
pub(crate) use lists::{jobs, list};
pub(crate) use search::search;
pub(crate) use store::store;

use layout::{Place, page, page_without_session};

/// How old a look at the holders may be where somebody asks for it.
pub(crate) const HOLDERS_FRESH: Duration = Duration::from_secs(1);
/// How old it may be where it is shown beside something else.
const HOLDERS_RECENT: Duration = Duration::from_secs(10);

/// A refusal, shown as a page.
pub(crate) struct Shown(Problem);

impl From<Problem> for Shown {
    fn from(problem: Problem) -> Shown {
        Shown(problem)
    }
}

impl IntoResponse for Shown {
    fn into_response(self) -> Response {
        problem(&self.0)
    }
}

/// The page of a refusal.
pub(crate) fn problem(problem: &Problem) -> Response {
    let content = html! {
        h1 { "This did not work" }
        div.notice.bad role="alert" {
            p { strong { (problem.message) } }
            @if !problem.detail.is_empty() { p { (problem.detail) } }
            p { (problem.hint) }
            p.quiet { "Code: " code { (problem.code) } }
        }
    };
    (problem.status, page("This did not work", Place::Elsewhere, "", &content)).into_response()
}

/// The page with the form that takes the token.
pub(crate) fn login(message: Option<&str>) -> Response {
    let content = html! {
        div.login {
            h1 { "Statehouse" }
            @if let Some(message) = message { div.notice.bad role="alert" { p { (message) } } }
            form method="post" action="/login" {
                label for="token" { "Token" }
                input #token type="password" name="token" autocomplete="current-password" required autofocus
                    aria-describedby="token-hint";
                p #token-hint.quiet {
                    "It is in the file " code { "token" } " of the home. A link that logs in once is printed by "
                    code { "statehouse up" } "."
                }
                button type="submit" { "Log in" }
            }
        }
    };
    page_without_session("Log in", &content)
}

fn shown(title: &str, place: Place, query: &str, content: &Markup) -> Response {
    (StatusCode::OK, page(title, place, query, content)).into_response()
}
