//! How a person comes in: by the link that is printed at the start and works once, or with the token in a form.
//!
//! Either gives a session: a random value in a cookie that scripts cannot read and other sites cannot send. Sessions live
//! in memory only; a dashboard that starts again asks again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use statehouse_http::{Problem, equal, random_text, read_body, same_origin};

use crate::app::{App, Visitor, see_other};
use crate::pages;

/// How long a session lasts after it was last used.
const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// The most sessions at once; the one that was not used for longest makes room.
const SESSIONS: usize = 64;
/// The largest form, in bytes.
const FORM_BYTES: usize = 4096;

pub(crate) struct Login {
    /// Gone once it was used.
    code: Mutex<Option<String>>,
    cookie: String,
    sessions: Mutex<Vec<Session>>,
}

struct Session {
    secret: String,
    used: Instant,
}

impl Login {
    pub(crate) fn new(code: Option<String>, cookie: String) -> Login {
        Login { code: Mutex::new(code), cookie, sessions: Mutex::default() }
    }

    /// True if the request carries a session; using it prolongs it.
    pub(crate) fn knows(&self, headers: &HeaderMap) -> bool {
        let now = Instant::now();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|s| now.duration_since(s.used) < SESSION_TIME);
        let mut known = false;
        for secret in self.secrets(headers) {
            for session in sessions.iter_mut().filter(|s| equal(&s.secret, secret)) {
                session.used = now;
                known = true;
            }
        }
        known
    }

    fn secrets<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter_map(|(name, value)| (name == self.cookie).then_some(value))
    }

    /// Takes the one-time code if this is it.
    fn redeem(&self, candidate: &str) -> bool {
        let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        let right = code.as_deref().is_some_and(|code| equal(code, candidate));
        if right {
            *code = None;
        }
        right
    }

    /// Begins a session and sends the browser to the first page with it.
    fn begin(&self) -> Result<Response, Problem> {
        let secret = random_text().map_err(|e| Problem::internal(e.to_string()))?;
        let cookie = self.set_cookie(&secret, SESSION_TIME.as_secs())?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS
            && let Some((oldest, _)) = sessions.iter().enumerate().min_by_key(|(_, s)| s.used)
        {
            sessions.swap_remove(oldest);
        }
        sessions.push(Session { secret, used: Instant::now() });
        drop(sessions);
        let mut response = see_other("/");
        response.headers_mut().insert(header::SET_COOKIE, cookie);
        Ok(response)
    }

    fn end(&self, headers: &HeaderMap) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in self.secrets(headers) {
            sessions.retain(|s| !equal(&s.secret, secret));
        }
    }

    fn set_cookie(&self, secret: &str, seconds: u64) -> Result<HeaderValue, Problem> {
        let name = &self.cookie;
        HeaderValue::try_from(format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}"))
            .map_err(|e| Problem::internal(e.to_string()))
    }
}

#[derive(Deserialize, Default)]
struct LoginQuery {
    code: Option<String>,
}

/// `GET /login`, with or without the code of the link.
pub(crate) async fn page(State(app): State<Arc<App>>, headers: HeaderMap, uri: Uri) -> Result<Response, Problem> {
    let code = Query::<LoginQuery>::try_from_uri(&uri).map(|q| q.0.code).unwrap_or_default();
    let known = app.visitor(&headers) == Visitor::Person;
    match code {
        Some(code) if app.login.redeem(&code) => app.login.begin(),
        _ if known => Ok(see_other("/")),
        Some(_) => {
            Ok(form(StatusCode::UNAUTHORIZED, Some("This link has been used already, or belongs to an earlier start.")))
        }
        None => Ok(form(StatusCode::OK, None)),
    }
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
}

/// `POST /login`, with the token in a form.
pub(crate) async fn log_in(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    same_origin(&headers)?;
    let body = read_body(body, FORM_BYTES, app.options.limits.body_time).await?;
    // A form has the syntax of a query.
    let given = std::str::from_utf8(&body)
        .ok()
        .and_then(|text| Uri::try_from(format!("/?{text}")).ok())
        .and_then(|uri| Query::<LoginForm>::try_from_uri(&uri).ok());
    match given {
        Some(Query(form)) if app.options.token.matches(form.token.trim()) => app.login.begin(),
        _ => Ok(form(StatusCode::UNAUTHORIZED, Some("This is not the token of this home."))),
    }
}

/// `POST /logout`.
pub(crate) async fn log_out(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Problem> {
    same_origin(&headers)?;
    app.login.end(&headers);
    let mut response = see_other("/login");
    response.headers_mut().insert(header::SET_COOKIE, app.login.set_cookie("", 0)?);
    Ok(response)
}

fn form(status: StatusCode, message: Option<&str>) -> Response {
    (status, pages::login(message)).into_response()
}
