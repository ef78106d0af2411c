//! Product tests: whole processes, one real store.
