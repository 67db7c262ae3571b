//! The files of a site: the switch's configuration, the servers' peers, and keys.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use spillway_lab::{Host, Lab, LabSwitch};
use spillway_wire::packet::ethernet::Mac;

use super::SERVICE;
use crate::error::Error;

const CONTROL_PORT: u16 = 9_511;
const SERVICE_PORT: u16 = 11_211;
/// The port at which servers import connections that are not theirs from the beginning.
const PLACE_PORT: u16 = 21_211;
const DATAGRAM_PORT: u16 = 7_720;

/// Paths and addresses.
#[derive(Debug)]
pub(super) struct Files {
    pub directory: PathBuf,
    pub switch: PathBuf,
    pub switch_socket: PathBuf,
    pub peers: PathBuf,
    pub control: SocketAddr,
    pub service: SocketAddr,
}

/// Writes all files to `directory`, which is removed with the laboratory.
pub(super) fn write(
    directory: &Path,
    (lab, switch): (&Lab, &LabSwitch),
    clients: &[Host],
    servers: &[(&str, Host)],
    policy: &str,
) -> Result<Files, Error> {
    std::fs::create_dir_all(directory).map_err(Error::writing(directory))?;
    let files = Files {
        directory: directory.to_owned(),
        switch: directory.join("switch.toml"),
        switch_socket: directory.join("switch.sock"),
        peers: directory.join("peers.toml"),
        control: SocketAddr::new(switch.addresses()[0], CONTROL_PORT),
        service: SocketAddr::new(servers[0].1.address(), SERVICE_PORT),
    };
    for name in servers.iter().map(|(name, _)| *name).chain(["peers"]) {
        let path = directory.join(format!("{name}.key"));
        spillway_keys::write_new_key_file(&path)
            .map_err(|error| Error::process(format!("cannot make a key: {error}"), ""))?;
    }
    let texts = [
        (&files.switch, switch_text(&lab.run_name(), &files, clients, servers)),
        (&files.peers, peers_text(&files, servers, policy)),
    ];
    for (path, text) in texts {
        std::fs::write(path, text).map_err(Error::writing(path))?;
    }
    Ok(files)
}

fn place(files: &Files, number: usize, host: &Host) -> SocketAddr {
    if number == 0 { files.service } else { SocketAddr::new(host.address(), PLACE_PORT) }
}

fn switch_text(name: &str, files: &Files, clients: &[Host], servers: &[(&str, Host)]) -> String {
    let Files { control, service, switch_socket, .. } = files;
    let mut text = format!(
        "[switch]\nname = \"{name}\"\ncontrol = [\"{control}\"]\nsocket = \"{}\"\n",
        switch_socket.display()
    );
    // Writing to a string cannot fail.
    for client in clients {
        let (port, mac) = (client.far_interface(), Mac(client.mac()));
        let _ = write!(
            text,
            "[[port]]\ninterface = \"{port}\"\n[[station]]\nmac = \"{mac}\"\nport = \"{port}\"\n"
        );
    }
    let original = servers[0].0;
    let _ = write!(
        text,
        "[[service]]\nname = \"{SERVICE}\"\nendpoints = [{{ address = \"{service}\", server = \"{original}\" }}]\n"
    );
    for (number, (name, host)) in servers.iter().enumerate() {
        let (port, mac, address) = (host.far_interface(), Mac(host.mac()), host.address());
        let _ = write!(
            text,
            "[[port]]\ninterface = \"{port}\"\nmay_own = [\"{SERVICE}\"]\n[[server]]\nname = \"{name}\"\nid = {}\naddress = \
             \"{address}\"\nmac = \"{mac}\"\nport = \"{port}\"\nkey_file = \"{name}.key\"\n",
            number + 1
        );
        if number > 0 {
            let place = place(files, number, host);
            let _ = writeln!(text, "places = [{{ address = \"{place}\", service = \"{SERVICE}\" }}]");
        }
    }
    text
}

fn peers_text(files: &Files, servers: &[(&str, Host)], policy: &str) -> String {
    let mut text = format!("[moves]\npeers_key_file = \"peers.key\"\npolicy = \"{policy}\"\n");
    for (number, (name, host)) in servers.iter().enumerate() {
        let (address, mac, place) = (host.address(), Mac(host.mac()), place(files, number, host));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[[moves.peer]]\nname = \"{name}\"\nid = {}\naddress = \"{address}:{DATAGRAM_PORT}\"\nmac = \"{mac}\"\nplace = \
             \"{place}\"\n",
            number + 1
        );
    }
    text
}
