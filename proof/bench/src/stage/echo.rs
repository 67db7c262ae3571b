//! An echo server on the server's host, for plain clients and for links: built on the server library, or on the user-level
//! stack.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_lab::{Launch, Place, Process};

use super::Stage;
use crate::error::Error;
use crate::served::{CLIENTS, check_runs};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running echo server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Echo {
    process: Process,
    /// The ordinary port.
    pub plain: SocketAddr,
    /// The link port.
    pub link: SocketAddr,
}

impl Stage {
    /// Starts an echo server and waits until it listens.
    pub(crate) fn echo(&self) -> Result<Echo, Error> {
        let place = Place::from(&self.server);
        let free_address =
            || -> Result<SocketAddr, Error> { Ok(SocketAddr::new(place.address(), place.free_port()?)) };
        let (plain, link) = (free_address()?, free_address()?);
        let launch = Launch::new(&self.programs.lab)
            .name("echo")
            .args(["echo", "--listen", &plain.to_string(), "--link", &link.to_string()])
            .args(self.keys.arguments())
            .args(["--allow-clients", CLIENTS]);
        self.start_echo(&launch, (plain, link), "listening")
    }

    /// As [`echo`](Self::echo), on the user-level stack. The laboratory must be
    /// [made with checksums](Self::create_with_checksums).
    pub(crate) fn echo_on_stack(&self) -> Result<Echo, Error> {
        let place = Place::from(&self.server);
        let free_address =
            || -> Result<SocketAddr, Error> { Ok(SocketAddr::new(place.address(), place.free_port()?)) };
        let (plain, link) = (free_address()?, free_address()?);
        let launch = Launch::new(&self.programs.lab)
            .name("echo")
            .args(["echo", "--engine", "xdp", "--interface", self.server.interface()])
            .args(["--service", &plain.to_string(), "--link", &link.to_string(), "--link-key"])
            .args([&self.keys.helper])
            .args(["--allow-clients", CLIENTS]);
        let echo = self.start_echo(&launch, (plain, link), "serving")?;
        // Attaching the server's XDP program has replaced the interface's threads.
        self.server.pin_and_account_interface()?;
        Ok(echo)
    }

    fn start_echo(
        &self,
        launch: &Launch,
        (plain, link): (SocketAddr, SocketAddr),
        ready: &str,
    ) -> Result<Echo, Error> {
        let mut echo = Echo { process: self.server.spawn(launch)?, plain, link };
        let deadline = Instant::now() + READY_TIMEOUT;
        while !echo.process.stdout()?.starts_with(ready) {
            echo.check()?;
            if Instant::now() >= deadline {
                return Err(Error::process("the echo server is not ready", echo.process.last_output()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(echo)
    }
}

impl Echo {
    /// Fails if the server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        check_runs(&mut self.process, "the echo server")
    }
}
