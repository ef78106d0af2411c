//! What was said where.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use statehouse_sessions::{Hit, SessionId};

use super::layout::Place;
use super::{Shown, shown};
use crate::api::{MOST, query};
use crate::app::App;
use crate::words::{count, speaker, title, when};

/// Finds on the first page; each "more" adds as many.
const STEP: u64 = 50;

#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    q: String,
    limit: Option<u64>,
}

/// `GET /search?q=`.
pub(crate) async fn search(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Shown> {
    let SearchQuery { q, limit } = query(&uri)?;
    let words = q.trim().to_owned();
    if words.is_empty() {
        let content = html! { h1 { "Search" } p.empty { "Write what you look for into the field above." } };
        return Ok(shown("Search", Place::Elsewhere, "", &content));
    }
    let limit = limit.unwrap_or(STEP).clamp(1, MOST);
    let asked = words.clone();
    let (mut hits, titles) = app
        .store(move |s| {
            let hits = s.search(&asked, limit + 1)?;
            let mut titles: HashMap<SessionId, String> = HashMap::new();
            for hit in &hits {
                if let Entry::Vacant(place) = titles.entry(hit.session_id) {
                    place.insert(title(&s.session(hit.session_id)?));
                }
            }
            Ok((hits, titles))
        })
        .await?;
    let more = hits.len() as u64 > limit;
    hits.truncate(limit as usize);
    let found = format!("{}{}", if more { "More than " } else { "" }, count(hits.len() as u64, "find"));
    let content = html! {
        h1 { "Search" }
        p role="status" { @if hits.is_empty() { "Nothing was found for " } @else { (found) " for " } strong dir="auto" { (words) } "." }
        ol.hits {
            @for hit in &hits { (entry(hit, titles.get(&hit.session_id).map_or("", String::as_str))) }
        }
        @if more && limit < MOST {
            nav.pages aria-label="More finds" {
                a rel="next" href={ "/search?q=" (escape(&words)) "&limit=" (limit + STEP) } { "More" }
            }
        }
    };
    Ok(shown(&format!("Search: {words}"), Place::Elsewhere, &words, &content))
}

fn entry(hit: &Hit, title: &str) -> Markup {
    html! {
        li {
            a href={ "/sessions/" (hit.session_id) "?at=" (hit.message_id) "#m-" (hit.message_id) } {
                span.title dir="auto" { (title) }
            }
            p.snippet dir="auto" { (marked(&hit.snippet)) }
            span.facts { span { (speaker(hit.role)) } (when(hit.created_at)) }
        }
    }
}

/// The snippet with the found words marked; they stand between U+2068 and U+2069.
fn marked(snippet: &str) -> Markup {
    html! {
        @for (n, piece) in snippet.split('\u{2068}').enumerate() {
            @match piece.split_once('\u{2069}').filter(|_| n > 0) {
                Some((word, rest)) => { mark { (word) } (rest) },
                None => { (piece) },
            }
        }
    }
}

/// A text as the value of a query.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_words_are_marked_and_markup_is_text() {
        let markup = |s| marked(s).into_string();
        assert_eq!(markup("a \u{2068}b\u{2069} <i>"), "a <mark>b</mark> &lt;i&gt;");
        assert_eq!(markup("\u{2068}<script>\u{2069}"), "<mark>&lt;script&gt;</mark>");
        assert_eq!(markup("\u{2069}a\u{2068}b"), "\u{2069}ab");
        assert_eq!(escape("a&b=日"), "a%26b%3D%E6%97%A5");
    }
}
