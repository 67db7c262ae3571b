//! Sends requests to an echo server: on its own link port, then through a helper, and then on its own link port again.
//! Prints the latency of the replies. The server is the server library's `echo` example.
//!
//! ```text
//! ping SERVER_LINK_PORT HELPER_LINK_PORT CLIENT_KEY_FILE [COUNT]
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_client::session::BlockingSession;
use spillway_client::{Key, LinkTarget, SessionSettings};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ping: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (server, helper, key, count) = match arguments.as_slice() {
        [server, helper, key] => (server, helper, key, 1000),
        [server, helper, key, count] => (server, helper, key, count.parse()?),
        _ => return Err("usage: ping SERVER_LINK_PORT HELPER_LINK_PORT CLIENT_KEY_FILE [COUNT]".into()),
    };
    let key = spillway_keys::read_key_file(key)?;
    let routes = vec![link_port(server, &key)?, link_port(helper, &key)?];

    let mut session = BlockingSession::open(routes, SessionSettings::default())?;
    measure(&mut session, count)?;
    for route in [1, 0] {
        session.move_to(route)?;
        // The first reply arrives when the session has moved: measured alone, because its latency includes the move.
        measure(&mut session, 1)?;
        measure(&mut session, count)?;
    }
    Ok(session.close()?)
}

fn link_port(address: &str, key: &Key) -> Result<LinkTarget, Box<dyn Error>> {
    let encryption = Default::default();
    Ok(LinkTarget { address: address.parse()?, key: key.clone(), server: None, encryption })
}

fn measure(session: &mut BlockingSession, count: u32) -> Result<(), Box<dyn Error>> {
    let (request, mut reply) = ([b'x'; 64], [0; 64]);
    let mut slowest = Duration::ZERO;
    let start = Instant::now();
    for _ in 0..count {
        let sent = Instant::now();
        session.write_all(&request)?;
        session.read_exact(&mut reply)?;
        slowest = slowest.max(sent.elapsed());
        if reply != request {
            return Err("the reply differs from the request".into());
        }
    }
    let mean = start.elapsed() / count.max(1);
    let carrier = session.session().carrier().map_or("nothing".into(), |port| port.to_string());
    println!("over {carrier}: {count} replies, mean {mean:?}, slowest {slowest:?}");
    Ok(())
}
