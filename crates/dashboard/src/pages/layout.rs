//! The frame of every page: landmarks, navigation, the search field.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

/// Which entry of the navigation a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Conversations,
    Store,
    Jobs,
    Incidents,
    Elsewhere,
}

const PLACES: [(Place, &str, &str); 4] = [
    (Place::Conversations, "/", "Conversations"),
    (Place::Store, "/store", "Store"),
    (Place::Jobs, "/jobs", "Jobs"),
    (Place::Incidents, "/incidents", "Incidents"),
];

/// A page for somebody who is logged in; `query` stands in the search field.
pub(super) fn page(title: &str, place: Place, query: &str, content: &Markup) -> Response {
    respond(
        title,
        &html! {
            a.skip href="#main" { "Skip to the content" }
            header.top {
                div.bar {
                    a.brand href="/" { "Statehouse" }
                    nav aria-label="Main" {
                        ul {
                            @for (at, href, name) in PLACES {
                                li { a href=(href) aria-current=[(at == place).then_some("page")] { (name) } }
                            }
                        }
                    }
                    form.search role="search" method="get" action="/search" {
                        label.hidden for="q" { "Search the conversations" }
                        input #q type="search" name="q" value=(query) placeholder="Search" maxlength="1000";
                        button type="submit" { "Search" }
                    }
                    form.logout method="post" action="/logout" { button.plain type="submit" { "Log out" } }
                }
            }
            @if let Some(notice) = super::incidents::notice() { (notice) }
            main #main tabindex="-1" { (content) }
        },
    )
}

/// A page for somebody who is not.
pub(super) fn page_without_session(title: &str, content: &Markup) -> Response {
    respond(title, &html! { main #main { (content) } })
}

fn respond(title: &str, body: &Markup) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Without an address of origin, a browser says of our own forms only that they come from "null".
                meta name="referrer" content="same-origin";
                title { (title) " · Statehouse" }
                link rel="stylesheet" href="/assets/style.css";
                script src="/assets/live.js" defer {}
            }
            body { (body) }
        }
    };
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], document.into_string()).into_response()
}
