//! Messages as people and models write them: of very different length, mostly words, some code, some CJK and emoji.

use statehouse_testkit::Seed;

const WORDS: &[&str] = &[
    "the",
    "gateway",
    "answers",
    "when",
    "a",
    "message",
    "is",
    "safely",
    "stored",
    "and",
    "nobody",
    "waits",
    "for",
    "it",
    "please",
    "check",
    "whether",
    "this",
    "function",
    "returns",
    "early",
    "because",
    "error",
    "was",
    "ignored",
    "thanks",
    "let",
    "me",
    "look",
    "at",
    "log",
    "again",
    "tomorrow",
    "database",
    "locked",
    "während",
    "naïve",
    "résumé",
    "状態",
    "会話",
    "こんにちは",
    "데이터",
    "🙂",
    "🚀",
    "fn main() {}",
    "SELECT 1;",
    "/etc/hosts",
    "https://example.org/a?b=c",
];

/// `count` messages of a line each; the same every time.
pub(crate) fn lines(count: usize) -> Vec<String> {
    let mut seed = Seed::new(2026);
    (0..count)
        .map(|n| {
            // Most messages are a sentence or two, one in twenty is a page.
            let words = if seed.one_in(20) { 200 + seed.below(300) } else { 5 + seed.below(60) };
            let text: Vec<&str> = (0..words).map(|_| *seed.pick(WORDS)).collect();
            format!("{n} {}", text.join(" "))
        })
        .collect()
}
