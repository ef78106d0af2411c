//! Who may come in.

use crate::house::{CODE, House, Reply, TOKEN};

fn to_login(reply: &Reply) -> bool {
    reply.status == 303 && reply.header("location") == Some("/login")
}

#[test]
fn a_stranger_sees_the_login_page_and_nothing_else() {
    let house = House::new();
    let id = house.conversation(Some("secret title"), &["secret text"]);
    for path in ["/", "/store", "/jobs", "/incidents", "/search?q=secret", &format!("/sessions/{id}"), "/nowhere"] {
        let reply = house.call("GET", path, &[], "");
        assert!(to_login(&reply) && !reply.body.contains("secret"), "{path}: {reply:?}");
    }
    for path in ["/api/sessions", "/api/jobs", "/api/store", &format!("/api/sessions/{id}/events"), "/api/", "/api"] {
        let reply = house.call("GET", path, &[], "");
        assert_eq!((reply.status, reply.problem().as_str()), (401, "unauthorized"), "{path}");
    }
    for headers in [[("Authorization", "Bearer wrong")], [("Cookie", "statehouse_1=x")]] {
        assert_eq!(house.call("GET", "/api/sessions", &headers, "").status, 401);
    }
    assert_eq!(house.call("GET", "/login", &[], "").status, 200);
    assert_eq!(house.call("GET", "/assets/style.css", &[], "").status, 200);
    assert_eq!(house.call("GET", "/healthz", &[], "").status, 200);
}

#[test]
fn the_link_works_once_and_gives_a_session_that_ends_with_the_logout() {
    let house = House::new();
    let link = format!("/login?code={CODE}");
    assert_eq!(house.call("GET", "/login?code=wrong", &[], "").status, 401);
    assert_eq!(house.call("GET", "/login?code=", &[], "").status, 401);
    let first = house.call("GET", &link, &[], "");
    assert_eq!((first.status, first.header("location")), (303, Some("/")));
    let set = first.header("set-cookie").unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(attribute), "{set}");
    }
    assert!(set.starts_with(&format!("statehouse_{}=", house.address.port())), "{set}");
    let cookie = first.cookie().unwrap();
    assert!(!cookie.contains(CODE) && !cookie.contains(TOKEN));

    let again = house.call("GET", &link, &[], "");
    assert_eq!((again.status, again.cookie()), (401, None));
    assert!(again.body.contains("used already") && again.body.contains("<form"));

    let with = [("Cookie", cookie.as_str())];
    assert_eq!(house.call("GET", "/", &with, "").status, 200);
    assert_eq!(house.call("GET", "/api/sessions", &with, "").status, 200);
    assert_eq!(house.call("GET", &link, &with, "").status, 303, "who is in already goes to the first page");
    assert_eq!(house.call("GET", "/logout", &with, "").status, 405);
    let out = house.call("POST", "/logout", &with, "");
    assert!(to_login(&out) && out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert!(to_login(&house.call("GET", "/", &with, "")));
}

#[test]
fn the_form_takes_the_token_and_only_that() {
    let house = House::new();
    for body in
        ["", "token=", "token=wrong", &format!("token={TOKEN}x"), "tok\u{e9}n", &format!("other={TOKEN}"), "token=%"]
    {
        let reply = house.call("POST", "/login", &[], body);
        assert_eq!((reply.status, reply.cookie()), (401, None), "{body}");
    }
    let reply = house.call(
        "POST",
        "/login",
        &[("Content-Type", "application/x-www-form-urlencoded")],
        &format!("token=+{TOKEN}%0A"),
    );
    assert_eq!(reply.status, 303);
    let cookie = reply.cookie().unwrap();
    assert_eq!(house.call("GET", "/", &[("Cookie", &format!("a=b; {cookie}; c=d"))], "").status, 200);
    let long = format!("token={}", "x".repeat(10_000));
    assert_eq!(house.call("POST", "/login", &[], &long).problem(), "too_large");
}

#[test]
fn forms_of_other_sites_and_foreign_names_are_refused() {
    let house = House::new();
    let form = format!("token={TOKEN}");
    let own = format!("http://{}", house.address);
    for headers in [
        vec![("Origin", "http://evil.example")],
        vec![("Origin", "http://127.0.0.1:1")],
        vec![("Origin", "null")],
        vec![("Sec-Fetch-Site", "cross-site")],
        vec![("Sec-Fetch-Site", "same-site"), ("Origin", own.as_str())],
    ] {
        let reply = house.call("POST", "/login", &headers, &form);
        assert_eq!((reply.status, reply.problem().as_str()), (403, "foreign_origin"), "{headers:?}");
    }
    for headers in [vec![("Origin", own.as_str())], vec![("Sec-Fetch-Site", "same-origin"), ("Origin", "null")]] {
        assert_eq!(house.call("POST", "/login", &headers, &form).status, 303, "{headers:?}");
    }
    for path in ["/", "/login", "/assets/style.css", "/api/sessions", "/healthz"] {
        let reply =
            house.call("GET", path, &[("Host", "evil.example"), ("Authorization", &format!("Bearer {TOKEN}"))], "");
        assert_eq!((reply.status, reply.problem().as_str()), (403, "foreign_host"), "{path}");
    }
}

#[test]
fn every_answer_forbids_what_a_page_of_ours_never_needs() {
    let house = House::new();
    for (path, with) in [
        ("/", true),
        ("/", false),
        ("/login", false),
        ("/api/sessions", false),
        ("/assets/live.js", false),
        ("/nowhere", true),
    ] {
        let reply = if with { house.get(path) } else { house.call("GET", path, &[], "") };
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-frame-options"), Some("DENY"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        let kept = reply.header("cache-control").unwrap();
        assert_eq!(kept, if path.starts_with("/assets") { "no-cache" } else { "no-store" }, "{path}");
    }
}

#[test]
fn sessions_are_bounded_and_the_last_used_ones_stay() {
    let house = House::new();
    let log_in = || house.call("POST", "/login", &[], &format!("token={TOKEN}")).cookie().unwrap();
    let known = |cookie: &str| house.call("GET", "/jobs", &[("Cookie", cookie)], "").status == 200;
    let (first, second) = (log_in(), log_in());
    for _ in 0..62 {
        log_in();
    }
    assert!(known(&first));
    let newest = log_in();
    assert!(known(&first) && known(&newest) && !known(&second));
}
