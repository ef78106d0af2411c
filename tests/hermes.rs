//! A store of the real hermes-agent 0.19.0 is taken over whole, and served.
