//! What an operator does to a database: look at it, and prove that it is healthy.
pub mod check;
