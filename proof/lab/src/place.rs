//! Places for peers: a host of a lab, or this machine's loopback, which needs no privileges.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use crate::process::{Confinement, Launch, Process};
use crate::run::Run;
use crate::{Host, LabError};

/// A place for processes and connections.
#[derive(Clone, Debug)]
pub enum Place {
    /// This machine's loopback.
    Local(Loopback),
    /// A host of a lab.
    Host(Host),
}

/// Loopback, with a directory for the output of processes. Dropping the last handle removes the directory.
#[derive(Clone, Debug)]
pub struct Loopback(Arc<LocalParts>);

#[derive(Debug)]
struct LocalParts {
    run: Arc<Run>,
}

impl Place {
    /// This machine's loopback.
    pub fn local() -> Result<Place, LabError> {
        let run = Run::open("local", None)?;
        Ok(Place::Local(Loopback(Arc::new(LocalParts { run }))))
    }

    /// The address of servers that are started here.
    pub fn address(&self) -> IpAddr {
        match self {
            Place::Local(_) => Ipv4Addr::LOCALHOST.into(),
            Place::Host(host) => host.address(),
        }
    }

    /// The host's name, or `loopback`, for messages.
    pub fn name(&self) -> &str {
        match self {
            Place::Local(_) => "loopback",
            Place::Host(host) => host.name(),
        }
    }

    /// The run's directory, which the end of the run removes.
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Place::Local(local) => &local.0.run.directory,
            Place::Host(host) => &host.0.run.directory,
        }
    }

    /// Starts a process here.
    pub fn spawn(&self, launch: &Launch) -> Result<Process, LabError> {
        match self {
            Place::Host(host) => host.spawn(launch),
            Place::Local(local) => {
                let confinement = Confinement {
                    namespace: None,
                    task_files: Vec::new(),
                    cores: None,
                    directory: &local.0.run.directory,
                    host_name: "loopback".into(),
                };
                Process::start(launch, confinement)
            }
        }
    }

    /// Runs `work` in the network namespace in which [`Place::address`] is reachable.
    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        match self {
            Place::Local(_) => Ok(work()),
            Place::Host(host) => host.run_inside(work),
        }
    }

    /// A TCP port that is free now. Another process may take it: if the bind fails, call again.
    pub fn free_port(&self) -> Result<u16, LabError> {
        let address = self.address();
        let port = self.run_inside(|| spillway_ports::free_port_at(address))?;
        port.ok_or_else(|| LabError::io(format!("no free port at {address}"))(ErrorKind::AddrInUse.into()))
    }
}

impl From<&Host> for Place {
    fn from(host: &Host) -> Place {
        Place::Host(host.clone())
    }
}

impl From<Host> for Place {
    fn from(host: Host) -> Place {
        Place::Host(host)
    }
}

impl Drop for LocalParts {
    fn drop(&mut self) {
        if let Err(e) = self.run.close() {
            eprintln!("lab: {e}");
        }
    }
}
