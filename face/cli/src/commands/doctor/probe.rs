//! Probes a server's link port: whether it answers, its version, and whether it accepts the key.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use spillway_auth::{Key, Prover, prove, verify};
use spillway_wire::preamble::{Hello, Role, VERSIONS, Verdict, WELCOME_BYTES, Welcome, transcript};

use super::finding::Finding;

/// Timeout of the connect, and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

const SERVER_CHECK: &str = "server";

/// Probes a link port with this key in this role. Without a key, a loopback port is probed with the loopback key.
pub(super) fn findings(server: &str, key: Option<&Path>, role: Role) -> Vec<Finding> {
    match probe(server, key, role) {
        Ok(findings) => findings,
        Err(finding) => vec![*finding],
    }
}

fn probe(server: &str, key: Option<&Path>, role: Role) -> Result<Vec<Finding>, Box<Finding>> {
    let missing = |found: String, next: &str| Box::new(Finding::missing(SERVER_CHECK, found, next));
    let named_key = key
        .map(spillway_keys::read_key_file)
        .transpose()
        .map_err(|error| missing(error.to_string(), "the key is needed to reach the server"))?;
    let (mut stream, peer, elapsed) = connect(server)?;
    let key = match &named_key {
        Some(key) => key.clone(),
        None if is_loopback(peer.ip()) => Key::loopback_only(),
        // A random key is refused, but the answer still shows that this is a link port and its version.
        None => spillway_keys::fresh_key().map_err(|error| missing(error.to_string(), ""))?,
    };
    let mut findings = vec![Finding::ok(
        SERVER_CHECK,
        format!("{peer} answers in {:.1} ms", elapsed.as_secs_f64() * 1000.0),
    )];
    let welcome = handshake(&mut stream, &key, role);
    let finding = match welcome {
        Err(why) => {
            return Err(missing(
                format!("{peer} is not a link port: {why}"),
                "is this the port of --link, and not the server's own?",
            ));
        }
        Ok(answer) => link_finding(answer, named_key.is_some(), role),
    };
    findings.push(finding);
    Ok(findings)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn connect(server: &str) -> Result<(TcpStream, SocketAddr, Duration), Box<Finding>> {
    let missing = |found: String, next: &str| Box::new(Finding::missing(SERVER_CHECK, found, next));
    let addresses: Vec<SocketAddr> = server
        .to_socket_addrs()
        .map_err(|error| missing(format!("{server}: {error}"), "name it as HOST:PORT, with its link port"))?
        .collect();
    let mut last = None;
    for address in addresses {
        let began = Instant::now();
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok((stream, address, began.elapsed())),
            Err(error) => last = Some((address, error)),
        }
    }
    Err(match last {
        None => missing(format!("{server} has no address"), "name it as HOST:PORT, with its link port"),
        Some((address, error)) => {
            let next = match error.kind() {
                std::io::ErrorKind::ConnectionRefused => {
                    "is the server running under `spillway run`, and has it begun to wait for clients? The link port \
                     opens then"
                }
                _ => "does a firewall block the port?",
            };
            missing(format!("{address}: {error}"), next)
        }
    })
}

enum Answer {
    Accepted(Welcome),
    WrongProof,
    Refused(Verdict),
}

fn handshake(stream: &mut TcpStream, key: &Key, role: Role) -> Result<Answer, String> {
    let describe = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        std::io::ErrorKind::UnexpectedEof => "the connection was closed without an answer".to_owned(),
        _ => error.to_string(),
    };
    let nonce = spillway_keys::fresh_nonce().map_err(|error| error.to_string())?;
    let hello =
        Hello { version_min: *VERSIONS.start(), version_max: *VERSIONS.end(), role, key: key.id(), nonce };
    stream.set_read_timeout(Some(TIMEOUT)).map_err(describe)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(describe)?;
    stream.write_all(&hello.emit()).map_err(describe)?;
    let mut bytes = [0; WELCOME_BYTES];
    stream.read_exact(&mut bytes).map_err(describe)?;
    let welcome = Welcome::parse(&bytes).map_err(|error| error.to_string())?;
    if welcome.verdict != Verdict::Proceed {
        return Ok(Answer::Refused(welcome.verdict));
    }
    let transcript = transcript(&hello, &welcome);
    if !verify(key, Prover::Server, &transcript, &welcome.proof) {
        return Ok(Answer::WrongProof);
    }
    // Complete the handshake: otherwise the server's log reports a peer that failed to authenticate.
    stream.write_all(&prove(key, Prover::Opener, &transcript)).map_err(describe)?;
    Ok(Answer::Accepted(welcome))
}

fn link_finding(answer: Answer, has_key: bool, role: Role) -> Finding {
    let supported = format!("{} to {}", VERSIONS.start(), VERSIONS.end());
    match answer {
        Answer::Accepted(welcome) => Finding::ok(
            "link",
            format!(
                "version {} (this command supports {supported}); the key is accepted for a {role}; {} connections a link",
                welcome.version, welcome.connections_max
            ),
        ),
        Answer::WrongProof => Finding::missing(
            "link",
            "the peer knows the key's id but not the key",
            "this is not your server: check which program listens there",
        ),
        Answer::Refused(Verdict::Version) => Finding::missing(
            "link",
            format!("the server supports none of versions {supported}"),
            "update the older of the two: versions N and N-1 work together",
        ),
        Answer::Refused(Verdict::Full) => {
            Finding::missing("link", "the server has no room for another link", "wait, or end other links")
        }
        Answer::Refused(_) if has_key => Finding::missing(
            "link",
            format!("this is a link port, but it rejects this key for a {role}"),
            "give both sides the same file: --key for helpers, --client-key for library clients",
        ),
        Answer::Refused(_) => Finding::warning(
            "link",
            "this is a link port that requires a key",
            "give the key file with --key to check whether it is accepted",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::finding::State;
    use super::*;

    /// The findings about a server that answers with these bytes.
    fn findings_for_reply(answer: Vec<u8>) -> Vec<Finding> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; spillway_wire::preamble::HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            stream.write_all(&answer).unwrap();
        });
        let findings = findings(&address, None, Role::Helper);
        server.join().unwrap();
        findings
    }

    #[test]
    fn each_kind_of_answer_has_a_finding() {
        let last = |answer: Vec<u8>| findings_for_reply(answer).pop().unwrap();
        let redis_error = last(b"-ERR unknown command\r\n".to_vec());
        assert!(
            redis_error.state == State::Missing && redis_error.found.contains("not a link port"),
            "{redis_error}"
        );
        let unknown_bytes = last(vec![b'x'; WELCOME_BYTES]);
        assert!(unknown_bytes.found.contains("not a link port"), "{unknown_bytes}");
        let key = last(Welcome::refusal(Verdict::Key).emit().to_vec());
        assert!(key.state == State::Warning && key.next.contains("--key"), "{key}");
        let version = last(Welcome::refusal(Verdict::Version).emit().to_vec());
        assert!(version.state == State::Missing && version.next.contains("update"), "{version}");
        let full = last(Welcome::refusal(Verdict::Full).emit().to_vec());
        assert_eq!(full.state, State::Missing);
        let mut wrong_proof = Welcome::refusal(Verdict::Full);
        (wrong_proof.verdict, wrong_proof.version, wrong_proof.connections_max) = (Verdict::Proceed, 1, 5);
        let wrong_proof = last(wrong_proof.emit().to_vec());
        assert!(
            wrong_proof.state == State::Missing && wrong_proof.found.contains("not the key"),
            "{wrong_proof}"
        );
    }

    #[test]
    fn an_unreachable_server_is_a_finding() {
        let free = spillway_ports::free_address().to_string();
        let refused = findings(&free, None, Role::Helper).pop().unwrap();
        assert!(refused.state == State::Missing && refused.next.contains("spillway run"), "{refused}");
        let nonsense = findings("nonsense", None, Role::Helper).pop().unwrap();
        assert_eq!(nonsense.state, State::Missing);
    }
}
