//! As much of SQL as is needed to take the statement of an index apart.

/// What an index is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IndexText {
    /// The text of each term, without collation and direction.
    pub(super) terms: Vec<String>,
    /// The condition after WHERE.
    pub(super) only: Option<String>,
}

/// Takes a `CREATE INDEX` apart; `None` if it does not look like one.
pub(super) fn index(text: &str) -> Option<IndexText> {
    let tokens = tokens(text);
    let open = tokens.iter().position(|t| t.text == "(" && t.depth == 0)?;
    let close = tokens.iter().position(|t| t.text == ")" && t.depth == 0 && t.from > tokens[open].from)?;
    let mut terms = Vec::new();
    let mut begin = open + 1;
    for at in open + 1..=close {
        if at == close || (tokens[at].text == "," && tokens[at].depth == 1) {
            terms.push(term(text, tokens.get(begin..at)?)?);
            begin = at + 1;
        }
    }
    let only = match tokens.get(close + 1) {
        None => None,
        Some(t) if t.text.eq_ignore_ascii_case("where") => {
            Some(text.get(tokens.get(close + 2)?.from..)?.trim().to_owned())
        }
        Some(_) => return None,
    };
    Some(IndexText { terms, only })
}

/// One term without what follows the expression.
fn term(text: &str, mut tokens: &[Token<'_>]) -> Option<String> {
    while let [.., last] = tokens {
        let is = |t: &Token<'_>, word: &str| t.depth == 1 && t.text.eq_ignore_ascii_case(word);
        if is(last, "asc") || is(last, "desc") {
            tokens = &tokens[..tokens.len() - 1];
        } else if let [rest @ .., collate, _] = tokens
            && is(collate, "collate")
        {
            tokens = rest;
        } else {
            break;
        }
    }
    let (first, last) = (tokens.first()?, tokens.last()?);
    Some(text.get(first.from..last.from + last.text.len())?.to_owned())
}

/// A word, a quoted text or a sign.
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// Where it begins.
    pub(super) from: usize,
    /// How many brackets are open around it; a bracket itself has the depth outside of it.
    pub(super) depth: usize,
}

impl Token<'_> {
    /// True for this word without quotes.
    pub(super) fn is(&self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }
}

pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut from = 0;
    while let Some(c) = text[from..].chars().next() {
        let rest = &text[from..];
        let length = if c.is_whitespace() {
            from += c.len_utf8();
            continue;
        } else if rest.starts_with("--") {
            from += rest.find('\n').map_or(rest.len(), |n| n + 1);
            continue;
        } else if rest.starts_with("/*") {
            from += rest.find("*/").map_or(rest.len(), |n| n + 2);
            continue;
        } else if matches!(c, '\'' | '"' | '`') {
            closing(rest, c)
        } else if c == '[' {
            rest.find(']').map_or(rest.len(), |n| n + 1)
        } else if c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii() {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii())).unwrap_or(rest.len())
        } else {
            c.len_utf8()
        };
        let token = &rest[..length];
        if token == ")" {
            depth = depth.saturating_sub(1);
        }
        found.push(Token { text: token, from, depth });
        if token == "(" {
            depth += 1;
        }
        from += length;
    }
    found
}

/// The length of a quoted text with its quotes. A doubled quote stands for itself.
fn closing(text: &str, quote: char) -> usize {
    let mut at = 1;
    loop {
        match text[at..].find(quote) {
            None => return text.len(),
            Some(n) if text[at + n + 1..].starts_with(quote) => at += n + 2,
            Some(n) => return at + n + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(Vec<String>, Option<String>)> {
        index(text).map(|i| (i.terms, i.only))
    }

    #[test]
    fn an_index_is_taken_apart() {
        let found = |terms: &[&str], only: Option<&str>| {
            Some((terms.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>(), only.map(str::to_owned)))
        };
        assert_eq!(
            parse(
                "CREATE UNIQUE INDEX \"a(b\" ON t(lower(a, ','), \"x,)\" COLLATE NOCASE DESC, b asc) WHERE b > 'where'"
            ),
            found(&["lower(a, ',')", "\"x,)\"", "b"], Some("b > 'where'"))
        );
        assert_eq!(parse("create index i on [t(] (a -- ), (\n , /* ( */ b)"), found(&["a", "b"], None));
        assert_eq!(parse("CREATE TABLE t"), None);
        assert_eq!(parse("CREATE INDEX i ON t(a"), None);
    }
}
