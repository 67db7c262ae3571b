//! The state of a port as the daemon reports it: in status, metrics and log.

use spillway_bpf::Mode;
use spillway_bpf::switch::PortState as State;
use spillway_xdp::Presence;
use tracing::{error, info, warn};

use crate::config::{Port, SwitchConfig};
use crate::problems::Problems;
use crate::status::PortStatus;

/// Whether the program runs on a port's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) number: u8,
    pub(crate) interface: String,
    /// `native`, `generic`, or empty if the program does not run there.
    mode: &'static str,
    /// Why the program does not run there.
    pub(crate) problem: Option<String>,
    /// Why the interface carries no frames, although the program runs there.
    down: Option<String>,
    /// The interface's present name, if it is not the one of the file.
    renamed: Option<String>,
}

impl PortState {
    /// `state`: that of the port's link, if it has one.
    pub(crate) fn of(port: &Port, state: Option<&State>, problems: &Problems) -> PortState {
        let unattached =
            PortState { number: port.number, interface: port.interface.clone(), ..PortState::default() };
        let Some(State::Attached { interface, mode }) = state else {
            return PortState { problem: Some(problems.text(port.number, state)), ..unattached };
        };
        // Fails only if the interface was removed just now: the next turn finds the port detached.
        let presence = Presence::of(*interface).ok();
        PortState {
            mode: if *mode == Mode::Native { "native" } else { "generic" },
            down: presence.as_ref().and_then(down),
            renamed: presence.map(|presence| presence.name).filter(|name| *name != port.interface),
            ..unattached
        }
    }

    /// The port in the status. `config`: the settings in force.
    pub(crate) fn status(&self, config: &SwitchConfig) -> PortStatus {
        let port = config.ports.iter().find(|port| port.number == self.number);
        let may_own = port.iter().flat_map(|port| &port.may_own).map(|service| config.service_name(*service));
        PortStatus {
            interface: self.interface.clone(),
            number: self.number,
            mode: self.mode.to_owned(),
            problem: self.problem.clone(),
            down: self.down.clone(),
            renamed: self.renamed.clone(),
            may_own: may_own.map(str::to_owned).collect(),
        }
    }

    /// Logs that the program has stopped at the port, or runs again. `earlier`: the state before, if the port existed.
    fn log_problem(&self, earlier: Option<&PortState>) {
        match (&self.problem, earlier.map(|one| &one.problem)) {
            (problem, Some(earlier)) if problem == earlier => {}
            (Some(problem), _) => error!(
                port = self.interface,
                "port {}: {problem}; the daemon tries again once a second", self.interface
            ),
            (None, Some(_)) => info!(port = self.interface, "port {}: forwards again", self.interface),
            (None, None) => {}
        }
    }

    /// Logs changes of the interface on which the program runs.
    fn log_interface(&self, earlier: Option<&PortState>) {
        match (&self.down, earlier.and_then(|one| one.down.as_ref())) {
            (down, earlier) if down.as_ref() == earlier => {}
            (Some(down), _) => warn!(port = self.interface, "port {}: {down}", self.interface),
            (None, _) if self.problem.is_none() => {
                info!(port = self.interface, "port {}: the interface is up again", self.interface);
            }
            (None, _) => {}
        }
        if let Some(name) = &self.renamed
            && earlier.is_none_or(|one| one.renamed != self.renamed)
        {
            warn!(
                port = self.interface,
                "port {}: the interface has the name {name} now; write it into the file, because the next reload or start looks \
                 for the old name and detaches the port",
                self.interface
            );
        }
    }
}

/// Why an interface carries no frames.
fn down(interface: &Presence) -> Option<String> {
    let name = &interface.name;
    match (interface.is_up, interface.has_carrier) {
        (false, _) => Some(format!("the interface is down: set it up with `ip link set {name} up`")),
        (true, false) => {
            Some("the interface has no carrier: set the other end up, or check the cable".to_owned())
        }
        (true, true) => None,
    }
}

/// Logs each port whose state has changed. At the first call, without earlier states, also logs ports in generic mode.
pub(crate) fn log_changes(before: &[PortState], after: &[PortState]) {
    if before.is_empty() {
        warn_of_generic_mode(after);
    }
    for state in after {
        let earlier = before.iter().find(|one| one.interface == state.interface);
        state.log_problem(earlier);
        state.log_interface(earlier);
    }
}

/// Warns of ports on which the program runs in generic mode: behind the driver, not in it.
fn warn_of_generic_mode(ports: &[PortState]) {
    for port in ports.iter().filter(|port| port.mode == "generic") {
        warn!(
            "port {}: the driver has no XDP, so that the program runs behind it, slower; turn off generic receive offload \
             there, because joined packets are too long: ethtool -K {} gro off",
            port.interface, port.interface
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_down_without_an_administrator_or_a_carrier() {
        let presence = |is_up, has_carrier| Presence { name: "eth9".into(), is_up, has_carrier };
        assert_eq!(down(&presence(true, true)), None);
        assert!(down(&presence(false, false)).unwrap().contains("ip link set eth9 up"));
        assert!(down(&presence(true, false)).unwrap().contains("no carrier"));
    }
}
