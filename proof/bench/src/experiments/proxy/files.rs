//! The files of a site: the switch's configuration, the peers of each group of servers, and keys.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use spillway_lab::Host;
use spillway_wire::packet::ethernet::Mac;

use super::case::System;
use crate::error::Error;

pub(super) const CONTROL_PORT: u16 = 9_511;
/// Port of services, and of the backends of proxies.
pub(super) const SERVICE_PORT: u16 = 8_080;
/// The port at which backends import connections.
const PLACE_PORT: u16 = 18_080;
const DATAGRAM_PORT: u16 = 7_720;
/// The frontend's name among its peers.
pub(super) const FRONTEND: &str = "frontend";

/// Servers that hand connections of one service off to each other.
#[derive(Debug)]
pub(super) struct Group {
    pub system: System,
    /// The frontend, then the backends.
    pub hosts: Vec<Host>,
    /// The id of the first one at the switch; those of the others follow.
    pub first_id: usize,
}

impl Group {
    /// The service's name.
    pub fn name(&self) -> &'static str {
        self.system.name()
    }

    /// Where clients connect.
    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(self.hosts[0].address(), SERVICE_PORT)
    }

    /// The name of a server among its peers.
    pub fn peer(index: usize) -> String {
        if index == 0 { FRONTEND.to_owned() } else { format!("b{index}") }
    }

    /// The name of a server at the switch, and of its key.
    pub fn server(&self, index: usize) -> String {
        format!("{}-{}", self.name(), Group::peer(index))
    }

    pub fn peers_file(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.toml", self.name()))
    }

    pub fn key_file(&self, directory: &Path, index: usize) -> PathBuf {
        directory.join(format!("{}.key", self.server(index)))
    }

    fn place(&self, index: usize) -> SocketAddr {
        if index == 0 { self.service() } else { SocketAddr::new(self.hosts[index].address(), PLACE_PORT) }
    }

    fn peers_text(&self) -> String {
        let mut text = "[moves]\npeers_key_file = \"peers.key\"\n".to_owned();
        for (index, host) in self.hosts.iter().enumerate() {
            let (name, id) = (Group::peer(index), self.first_id + index);
            let (address, mac, place) = (host.address(), Mac(host.mac()), self.place(index));
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[[moves.peer]]\nname = \"{name}\"\nid = {id}\naddress = \"{address}:{DATAGRAM_PORT}\"\nmac = \
                 \"{mac}\"\nplace = \"{place}\"\n"
            );
        }
        text
    }

    fn switch_text(&self) -> String {
        let name = self.name();
        let mut text = format!(
            "[[service]]\nname = \"{name}\"\nendpoints = [{{ address = \"{}\", server = \"{}\" }}]\n",
            self.service(),
            self.server(0)
        );
        for (index, host) in self.hosts.iter().enumerate() {
            let (port, mac, address) = (host.far_interface(), Mac(host.mac()), host.address());
            let (server, id) = (self.server(index), self.first_id + index);
            let _ = write!(
                text,
                "[[port]]\ninterface = \"{port}\"\nmay_own = [\"{name}\"]\n[[server]]\nname = \"{server}\"\nid = {id}\naddress = \
                 \"{address}\"\nmac = \"{mac}\"\nport = \"{port}\"\nkey_file = \"{server}.key\"\n"
            );
            if index > 0 {
                let place = self.place(index);
                let _ = writeln!(text, "places = [{{ address = \"{place}\", service = \"{name}\" }}]");
            }
        }
        text
    }
}

/// The switch's configuration file, and its admin socket.
#[derive(Debug)]
pub(super) struct SwitchFiles {
    pub config: PathBuf,
    pub socket: PathBuf,
}

/// Writes all files to `directory`, which is removed with the laboratory. `plain`: hosts that hand nothing off.
pub(super) fn write(
    directory: &Path,
    (run, control): (&str, SocketAddr),
    groups: &[Group],
    plain: &[&Host],
) -> Result<SwitchFiles, Error> {
    std::fs::create_dir_all(directory).map_err(Error::writing(directory))?;
    let keys = groups.iter().flat_map(|group| (0..group.hosts.len()).map(|at| group.key_file(directory, at)));
    for path in keys.chain([directory.join("peers.key")]) {
        spillway_keys::write_new_key_file(&path)
            .map_err(|error| Error::process(format!("cannot make a key: {error}"), ""))?;
    }
    let files = SwitchFiles { config: directory.join("switch.toml"), socket: directory.join("switch.sock") };
    let mut switch = format!(
        "[switch]\nname = \"{run}\"\ncontrol = [\"{control}\"]\nsocket = \"{}\"\n",
        files.socket.display()
    );
    for host in plain {
        let (port, mac) = (host.far_interface(), Mac(host.mac()));
        let _ = write!(
            switch,
            "[[port]]\ninterface = \"{port}\"\n[[station]]\nmac = \"{mac}\"\nport = \"{port}\"\n"
        );
    }
    for group in groups {
        switch += &group.switch_text();
        let path = group.peers_file(directory);
        std::fs::write(&path, group.peers_text()).map_err(Error::writing(&path))?;
    }
    std::fs::write(&files.config, switch).map_err(Error::writing(&files.config))?;
    Ok(files)
}
