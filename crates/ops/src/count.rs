//! Numbers of things in sentences.

/// `1 row`, `2 rows`.
pub fn of(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_row_is_not_1_rows() {
        assert_eq!([0, 1, 2].map(|n| super::of(n, "row", "rows")), ["0 rows", "1 row", "2 rows"]);
        assert_eq!(super::of(1, "process", "processes"), "1 process");
    }
}
