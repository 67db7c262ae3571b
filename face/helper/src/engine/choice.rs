//! Chooses the engine of a configuration.

use std::fmt;

use tracing::info;

use super::xdp::XdpEngine;
use crate::config::{Engine, HelperConfig, StartError};

/// The engine of a helper that is about to start.
pub enum Chosen {
    Sockets,
    Xdp(Box<XdpEngine>),
}

/// The engine of a running helper.
#[derive(Clone, Debug)]
pub enum EngineState {
    Sockets,
    Xdp(super::xdp::XdpState),
}

/// Opens what the configured engine needs for `threads` threads. `auto` chooses `xdp` if it can be opened,
/// otherwise kernel sockets, and logs the reason.
///
/// # Errors
/// `xdp` is configured, and cannot be opened.
pub fn choose(config: &HelperConfig, threads: usize) -> Result<Chosen, StartError> {
    match config.engine {
        Engine::Sockets => Ok(Chosen::Sockets),
        Engine::Xdp => Ok(Chosen::Xdp(Box::new(XdpEngine::open(config, threads).map_err(StartError::Xdp)?))),
        Engine::Auto => match XdpEngine::open(config, threads) {
            Ok(engine) => {
                info!("engine auto: xdp, {}", engine.state());
                Ok(Chosen::Xdp(Box::new(engine)))
            }
            Err(error) => {
                info!("engine auto: kernel sockets, because xdp is not possible: {error}");
                Ok(Chosen::Sockets)
            }
        },
    }
}

impl Chosen {
    /// Maximum number of threads: the number of receive queues. `None`: no limit.
    pub fn threads_max(&self) -> Option<usize> {
        match self {
            Chosen::Sockets => None,
            Chosen::Xdp(engine) => Some(engine.queues()),
        }
    }
}

impl EngineState {
    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            EngineState::Sockets => Engine::Sockets.name(),
            EngineState::Xdp(_) => Engine::Xdp.name(),
        }
    }

    /// Checks new settings of a running helper.
    ///
    /// # Errors
    /// The engine cannot serve these addresses.
    pub fn check(&self, config: &HelperConfig) -> Result<(), StartError> {
        match self {
            EngineState::Sockets => Ok(()),
            EngineState::Xdp(state) => state.check(config).map_err(StartError::Xdp),
        }
    }
}

impl fmt::Display for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineState::Sockets => f.write_str("kernel sockets"),
            EngineState::Xdp(state) => write!(f, "xdp, {state}"),
        }
    }
}
