//! Reaching a server's link port: does it answer, which versions, is the key accepted.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use spillway_auth::{Key, Prover, prove, verify};
use spillway_wire::preamble::{Hello, Role, VERSIONS, Verdict, WELCOME_BYTES, Welcome, transcript};

use super::finding::Finding;

/// For reaching the server, and for each answer.
const PATIENCE: Duration = Duration::from_secs(5);

const WHAT: &str = "server";

/// What a server's link port says to this key in this role.
pub(super) fn findings(server: &str, key: Option<&Path>, role: Role) -> Vec<Finding> {
    match probe(server, key, role) {
        Ok(findings) => findings,
        Err(finding) => vec![*finding],
    }
}

fn probe(server: &str, key: Option<&Path>, role: Role) -> Result<Vec<Finding>, Box<Finding>> {
    let missing = |found: String, next: &str| Box::new(Finding::missing(WHAT, found, next));
    let given = key
        .map(spillway_keys::read_key_file)
        .transpose()
        .map_err(|error| missing(error.to_string(), "the key is needed to reach the server"))?;
    let (mut stream, peer, took) = connect(server)?;
    let key = match &given {
        Some(key) => key.clone(),
        None if is_loopback(peer.ip()) => Key::loopback_only(),
        // One that nobody has: the answer still tells that it is a link port, and its versions.
        None => spillway_keys::fresh_key().map_err(|error| missing(error.to_string(), ""))?,
    };
    let mut findings =
        vec![Finding::ok(WHAT, format!("{peer} answers in {:.1} ms", took.as_secs_f64() * 1000.0))];
    let welcome = greet(&mut stream, &key, role);
    let finding = match welcome {
        Err(why) => {
            return Err(missing(
                format!("{peer} is no link port: {why}"),
                "is this the port of --link, and not the server's own?",
            ));
        }
        Ok(answer) => judged(answer, given.is_some(), role),
    };
    findings.push(finding);
    Ok(findings)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn connect(server: &str) -> Result<(TcpStream, SocketAddr, Duration), Box<Finding>> {
    let missing = |found: String, next: &str| Box::new(Finding::missing(WHAT, found, next));
    let addresses: Vec<SocketAddr> = server
        .to_socket_addrs()
        .map_err(|error| missing(format!("{server}: {error}"), "name it as HOST:PORT, with its link port"))?
        .collect();
    let mut last = None;
    for address in addresses {
        let began = Instant::now();
        match TcpStream::connect_timeout(&address, PATIENCE) {
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
                _ => "is there a firewall between?",
            };
            missing(format!("{address}: {error}"), next)
        }
    })
}

/// What the server said.
enum Answer {
    Accepted(Welcome),
    WrongProof,
    Refused(Verdict),
}

fn greet(stream: &mut TcpStream, key: &Key, role: Role) -> Result<Answer, String> {
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "it does not answer".to_owned(),
        std::io::ErrorKind::UnexpectedEof => "it closes without an answer".to_owned(),
        _ => error.to_string(),
    };
    let nonce = spillway_keys::fresh_nonce().map_err(|error| error.to_string())?;
    let hello =
        Hello { version_min: *VERSIONS.start(), version_max: *VERSIONS.end(), role, key: key.id(), nonce };
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(said)?;
    stream.write_all(&hello.emit()).map_err(said)?;
    let mut bytes = [0; WELCOME_BYTES];
    stream.read_exact(&mut bytes).map_err(said)?;
    let welcome = Welcome::parse(&bytes).map_err(|error| error.to_string())?;
    if welcome.verdict != Verdict::Proceed {
        return Ok(Answer::Refused(welcome.verdict));
    }
    let transcript = transcript(&hello, &welcome);
    if !verify(key, Prover::Server, &transcript, &welcome.proof) {
        return Ok(Answer::WrongProof);
    }
    // So that the server's log has a link that ended rather than a stranger.
    stream.write_all(&prove(key, Prover::Opener, &transcript)).map_err(said)?;
    Ok(Answer::Accepted(welcome))
}

fn judged(answer: Answer, has_key: bool, role: Role) -> Finding {
    let ours = format!("{} to {}", VERSIONS.start(), VERSIONS.end());
    match answer {
        Answer::Accepted(welcome) => Finding::ok(
            "link",
            format!(
                "version {} (this command speaks {ours}); the key is accepted of a {role}; {} connections a link",
                welcome.version, welcome.connections_max
            ),
        ),
        Answer::WrongProof => Finding::missing(
            "link",
            "whoever answers knows the name of the key and not the key",
            "this is not the server that it should be: look who listens there",
        ),
        Answer::Refused(Verdict::Version) => Finding::missing(
            "link",
            format!("the server speaks none of versions {ours}"),
            "update the older of the two: versions N and N-1 work together",
        ),
        Answer::Refused(Verdict::Full) => {
            Finding::missing("link", "the server has no room for another link", "wait, or end other links")
        }
        Answer::Refused(_) if has_key => Finding::missing(
            "link",
            format!("it is a link port, and does not accept this key of a {role}"),
            "give both sides the same file: --key for helpers, --client-key for library clients",
        ),
        Answer::Refused(_) => Finding::warning(
            "link",
            "it is a link port, and wants a key",
            "name the key file with --key to see whether it is accepted",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::finding::State;
    use super::*;

    /// What comes of a server that answers with these bytes.
    fn against(answer: Vec<u8>) -> Vec<Finding> {
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
    fn answers_are_told_apart() {
        let last = |answer: Vec<u8>| against(answer).pop().unwrap();
        let other = last(b"-ERR unknown command\r\n".to_vec());
        assert!(other.state == State::Missing && other.found.contains("no link port"), "{other}");
        let noise = last(vec![b'x'; WELCOME_BYTES]);
        assert!(noise.found.contains("no link port"), "{noise}");
        let key = last(Welcome::refusal(Verdict::Key).emit().to_vec());
        assert!(key.state == State::Warning && key.next.contains("--key"), "{key}");
        let version = last(Welcome::refusal(Verdict::Version).emit().to_vec());
        assert!(version.state == State::Missing && version.next.contains("update"), "{version}");
        let full = last(Welcome::refusal(Verdict::Full).emit().to_vec());
        assert_eq!(full.state, State::Missing);
        let mut lie = Welcome::refusal(Verdict::Full);
        (lie.verdict, lie.version, lie.connections_max) = (Verdict::Proceed, 1, 5);
        let lie = last(lie.emit().to_vec());
        assert!(lie.state == State::Missing && lie.found.contains("not the key"), "{lie}");
    }

    #[test]
    fn nobody_there_is_told() {
        let free = spillway_ports::free_address().to_string();
        let refused = findings(&free, None, Role::Helper).pop().unwrap();
        assert!(refused.state == State::Missing && refused.next.contains("spillway run"), "{refused}");
        let nonsense = findings("nonsense", None, Role::Helper).pop().unwrap();
        assert_eq!(nonsense.state, State::Missing);
    }
}
