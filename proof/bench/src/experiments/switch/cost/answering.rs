//! A process that answers control messages with the rules in Rust: what a switch would cost whose rules are changed
//! through a daemon instead of its program.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use spillway_auth::SwitchKey;
use spillway_rules::config::{
    Config, FLOWS_DEFAULT, OWNER_TIMEOUT_MAX, Place, Port, Server, Services, Station,
};
use spillway_rules::{Action, PortId, ServiceId, Switch};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{MESSAGE_BYTES, ServerId};

use super::frames::{self, DATAGRAM_HEADER_BYTES, End};

/// The server of the experiment. Its key is no secret.
pub const SERVER: ServerId = ServerId(1);

/// The line that the process prints when it is ready.
pub const READY: &str = "ready";

/// Ends of the frames in which the rules get messages; only the program sees real ones.
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PORT_MAC: Mac = Mac([2, 0, 0, 0, 2, 0]);

/// The key of [`SERVER`].
pub fn key() -> SwitchKey {
    SwitchKey::from_bytes([1; 16])
}

/// The hidden command `switch-answers LISTEN SERVER`: answers the control messages of the server with this address, until
/// it is killed.
///
/// # Errors
/// An argument is no IPv4 address, or the socket fails.
pub fn serve(arguments: &[String]) -> Result<(), String> {
    let [listen, server] = arguments else { return Err("usage: LISTEN SERVER".into()) };
    let listen: SocketAddrV4 = listen.parse().map_err(|error| format!("{listen}: {error}"))?;
    let server: Ipv4Addr = server.parse().map_err(|error| format!("{server}: {error}"))?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = u64::try_from(since_1970.as_nanos()).unwrap_or_default();
    let mut switch = Switch::new(configuration(listen, server), epoch).map_err(|error| error.to_string())?;
    answer(&mut switch, listen).map_err(|error| format!("cannot answer at {listen}: {error}"))
}

fn answer(switch: &mut Switch, listen: SocketAddrV4) -> io::Result<()> {
    let socket = UdpSocket::bind(listen)?;
    println!("{READY}");
    io::stdout().flush()?;
    let started_at = Instant::now();
    let mut message = [0; MESSAGE_BYTES + 1];
    loop {
        let (length, from) = socket.recv_from(&mut message)?;
        let SocketAddr::V4(from) = from else { continue };
        let source = End { mac: SERVER_MAC, address: from };
        let target = End { mac: PORT_MAC, address: listen };
        let mut frame = frames::datagram(source, target, &message[..length]);
        let now = Time(u64::try_from(started_at.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let decision = switch.handle_frame(now, port(), &mut frame);
        if decision.action == Action::Answer {
            socket.send_to(&frame[DATAGRAM_HEADER_BYTES..], from)?;
        }
    }
}

fn port() -> PortId {
    PortId::new(0).expect("ports have numbers up to 63")
}

fn configuration(listen: SocketAddrV4, server: Ipv4Addr) -> Config {
    let service = SocketAddr::new(server.into(), 80);
    Config {
        mode: spillway_rules::Mode::Gateway,
        ports: vec![Port { id: port(), mac: PORT_MAC, is_server: true, may_own: Services::ALL, mtu: 1500 }],
        stations: vec![Station { mac: SERVER_MAC, port: port() }],
        prefixes: Vec::new(),
        own_addresses: vec![IpAddr::V4(*listen.ip()).into()],
        control: vec![SocketAddr::from(listen).into()],
        daemon_key: SwitchKey::from_bytes(*b"the daemon's key"),
        servers: vec![Server {
            id: SERVER,
            key: key(),
            address: IpAddr::V4(server).into(),
            mac: SERVER_MAC,
            port: port(),
            encapsulation: None,
        }],
        places: vec![Place {
            at: service.into(),
            service: service.into(),
            number: ServiceId(0),
            server: SERVER,
        }],
        owner_timeout: OWNER_TIMEOUT_MAX,
        flows_max: FLOWS_DEFAULT,
        service_flows_max: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid_and_arguments_are_checked() {
        let listen = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 254), 7_711);
        assert_eq!(configuration(listen, Ipv4Addr::new(10, 77, 0, 1)).check(), Ok(()));
        for arguments in [vec![], vec!["10.0.0.1:1"], vec!["10.0.0.1", "10.0.0.2"], vec!["10.0.0.1:1", "x"]] {
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            assert!(serve(&arguments).is_err(), "{arguments:?}");
        }
    }
}
