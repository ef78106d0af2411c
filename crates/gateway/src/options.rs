//! What a gateway is given.

use std::sync::Arc;
use std::time::Duration;

use statehouse_http::{Hosts, Limits, Probe, Token};

use crate::responder::{Echo, Responder};

/// How a gateway runs.
#[derive(Clone)]
pub struct Options {
    /// What clients must send.
    pub token: Token,
    /// What answers.
    pub responder: Arc<dyn Responder>,
    /// The document of `/readyz`: 200 when its field `ready` is true, else 503. Asked at most once a second.
    pub readiness: Probe,
    /// Names, apart from the loopback ones, under which the gateway may be called.
    pub hosts: Hosts,
    /// What one client may take.
    pub limits: Limits,
    /// How turns are run.
    pub turns: TurnLimits,
}

/// How turns are run.
#[derive(Debug, Clone)]
pub struct TurnLimits {
    /// Turns of different conversations that run at once.
    pub at_once: usize,
    /// How long a lease lasts without renewal; it is renewed three times within that.
    pub lease: Duration,
    /// How often the store is asked for turns that another process has queued.
    pub poll: Duration,
    /// A turn that was taken up more often than this is failed: it may be what ends the process.
    pub attempts: u32,
    /// The largest answer, in bytes.
    pub answer_bytes: usize,
    /// How long an answer may take.
    pub answer_time: Duration,
}

impl Default for TurnLimits {
    fn default() -> TurnLimits {
        TurnLimits {
            at_once: 16,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(2),
            attempts: 20,
            answer_bytes: 4 << 20,
            answer_time: Duration::from_secs(600),
        }
    }
}

impl Options {
    /// An echoing gateway with the usual limits.
    pub fn new(token: Token, readiness: Probe) -> Options {
        Options {
            token,
            responder: Arc::new(Echo),
            readiness,
            hosts: Hosts::default(),
            limits: Limits::default(),
            turns: TurnLimits::default(),
        }
    }
}
