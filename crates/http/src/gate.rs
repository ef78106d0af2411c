//! Who may come in: the token, and the names under which this service may be called.
//!
//! The service listens on the loopback address, where every web page that a person opens can reach it too. A page can
//! make its own name resolve to 127.0.0.1 (DNS rebinding); the Host header then still carries the page's name, and that is
//! what gives it away. So a name that was not configured is refused before anything else is looked at.

use std::fmt;

use axum::http::{HeaderMap, HeaderValue, header};
use subtle::ConstantTimeEq;

use crate::problem::{Code, Problem};

/// The secret that programs send as `Authorization: Bearer`.
#[derive(Clone)]
pub struct Token(Box<str>);

/// The token is too short to be a secret.
#[derive(Debug, thiserror::Error)]
#[error("the token has {0} characters, and fewer than {min} can be guessed", min = Token::MIN)]
pub struct WeakToken(usize);

impl Token {
    /// The fewest characters of a token.
    pub const MIN: usize = 16;

    /// A token as read from its file; white space around it does not count.
    ///
    /// # Errors
    /// When it is shorter than [`Token::MIN`]; an empty file must never mean that everybody may come in.
    pub fn new(text: &str) -> Result<Token, WeakToken> {
        let text = text.trim();
        if text.len() < Token::MIN {
            return Err(WeakToken(text.len()));
        }
        Ok(Token(text.into()))
    }

    /// Compares in a time that does not depend on where the two differ.
    pub fn matches(&self, candidate: &str) -> bool {
        equal(&self.0, candidate)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Compares two secrets in a time that does not depend on where they differ; it does depend on their lengths.
pub fn equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

/// 32 random bytes as hexadecimal text, for one-time codes and cookies.
///
/// # Errors
/// When the system has no randomness to give.
pub fn random_text() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// The token of a request, if it has one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The names under which a service may be called, apart from the loopback ones.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Names without port, as in the configuration.
    pub fn new(names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts(names.into_iter().map(|n| n.trim().to_ascii_lowercase()).filter(|n| !n.is_empty()).collect())
    }

    /// True if `authority` (a name or address, with or without port) is one of ours.
    pub fn contains(&self, authority: &str) -> bool {
        let Some(name) = name_of(authority) else { return false };
        let name = name.to_ascii_lowercase();
        matches!(name.as_str(), "127.0.0.1" | "[::1]" | "localhost") || self.0.contains(&name)
    }
}

/// The name without the port; `None` if what follows the name is not a port.
fn name_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.rfind(':') {
        Some(colon) if !authority.ends_with(']') => (&authority[..colon], Some(&authority[colon + 1..])),
        _ => (authority, None),
    };
    let port_is_one = port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    (port_is_one && !name.is_empty()).then_some(name)
}

/// Refuses a request that was sent under a foreign name, or by a page of a foreign site.
///
/// # Errors
/// `foreign_host`, `foreign_origin`.
pub fn check_host(headers: &HeaderMap, hosts: &Hosts) -> Result<(), Problem> {
    let mut all = headers.get_all(header::HOST).iter();
    let host = match (all.next().map(HeaderValue::to_str), all.next()) {
        (Some(Ok(host)), None) if hosts.contains(host) => host,
        (Some(Ok(host)), None) => {
            return Err(Problem::new(
                Code::ForeignHost,
                "the request was sent to a name that this service does not have",
            )
            .with_detail(format!("Host: {host}")));
        }
        _ => return Err(Problem::new(Code::ForeignHost, "the request has no single readable Host header")),
    };
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let own = origin.to_str().ok().and_then(|o| o.strip_prefix("http://").or_else(|| o.strip_prefix("https://")));
    // A browser sends "null" for a form of a page that hides its address; the fetch metadata, which no page can
    // forge, then tells whether that page is ours.
    let same_site = headers.get("sec-fetch-site").is_some_and(|v| v == "same-origin");
    if own.is_some_and(|o| o.eq_ignore_ascii_case(host) || hosts.contains(o)) || (origin == "null" && same_site) {
        return Ok(());
    }
    Err(Problem::new(Code::ForeignOrigin, "the request was made by a page of another site")
        .with_detail(format!("Origin: {}", String::from_utf8_lossy(origin.as_bytes()))))
}

/// Refuses a request that changes something and was not made by a page of this very service, as another program on
/// another port of this machine could show one. A request that says nothing of where it comes from is not a browser's.
///
/// # Errors
/// `foreign_origin`.
pub fn same_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let own = match (headers.get("sec-fetch-site"), headers.get(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
            let origin = origin.as_bytes();
            let named = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
            named.is_some() && named == host
        }
        (None, None) => true,
    };
    if own { Ok(()) } else { Err(Problem::new(Code::ForeignOrigin, "the form was not sent by a page of this service")) }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn loopback_names_and_configured_ones_are_ours() {
        let hosts = Hosts::new(["House.lan".to_owned(), " ".to_owned()]);
        for good in ["127.0.0.1", "127.0.0.1:7420", "localhost:1", "LOCALHOST", "[::1]", "[::1]:80", "house.lan:7420"] {
            assert!(hosts.contains(good), "{good}");
        }
        for bad in [
            "",
            ":80",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost:",
            "localhost:x",
            "[::1",
            "::1",
            "[::1]x",
            "127.0.0.1:80@evil.example",
            "localhost.:80",
        ] {
            assert!(!hosts.contains(bad), "{bad}");
        }
    }

    #[test]
    fn a_foreign_or_doubled_host_and_a_foreign_origin_are_refused() {
        let check = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (k, v) in pairs {
                headers.append(*k, HeaderValue::from_static(v));
            }
            check_host(&headers, &Hosts::default()).map_err(|p| p.code)
        };
        assert_eq!(check(&[("host", "localhost:1")]), Ok(()));
        assert_eq!(check(&[("host", "localhost:1"), ("origin", "http://localhost:1")]), Ok(()));
        assert_eq!(check(&[("host", "localhost:1"), ("origin", "null"), ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(check(&[]), Err("foreign_host"));
        assert_eq!(check(&[("host", "evil.example")]), Err("foreign_host"));
        assert_eq!(check(&[("host", "localhost"), ("host", "evil.example")]), Err("foreign_host"));
        assert_eq!(check(&[("host", "localhost"), ("origin", "http://evil.example")]), Err("foreign_origin"));
        assert_eq!(check(&[("host", "localhost"), ("origin", "null")]), Err("foreign_origin"));
    }

    #[test]
    fn a_short_token_is_no_token() {
        assert!(Token::new(" \n").is_err());
        assert!(Token::new("0123456789abcde").is_err());
        let token = Token::new("0123456789abcdef\n").unwrap();
        assert!(token.matches("0123456789abcdef"));
        assert!(!token.matches("0123456789abcdeF") && !token.matches("") && !token.matches("0123456789abcdef0"));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
