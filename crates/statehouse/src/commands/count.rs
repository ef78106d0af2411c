//! Numbers of things in sentences; the libraries make such sentences too, so it lives there.

pub(crate) use statehouse_ops::count::of;
