//! Sends requests to an echo server, directly, then through a helper, then directly again, and prints how long
//! the replies took. The other end is the server library's `echo` example.
//!
//! ```text
//! ping SERVER LINK_PORT CLIENT_KEY_FILE [COUNT]
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_client::blocking::Client;
use spillway_client::{LinkTarget, Route, Settings};

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
    let (server, link, key, count) = match arguments.as_slice() {
        [server, link, key] => (server, link, key, 1000),
        [server, link, key, count] => (server, link, key, count.parse()?),
        _ => return Err("usage: ping SERVER LINK_PORT CLIENT_KEY_FILE [COUNT]".into()),
    };
    let server: SocketAddr = server.parse()?;
    let helper = LinkTarget {
        address: link.parse()?,
        key: spillway_keys::read_key_file(key)?,
        server: None,
        encryption: Default::default(),
    };

    let mut client = Client::connect(server, Settings::default())?;
    measure("direct", &mut client, count)?;
    // Every reply has been read, so the connection may move.
    client.move_to(Route::Link(&helper))?;
    measure("helped", &mut client, count)?;
    client.move_to(Route::Direct)?;
    measure("direct", &mut client, count)
}

fn measure(what: &str, client: &mut Client, count: u32) -> Result<(), Box<dyn Error>> {
    let (request, mut reply) = ([b'x'; 64], [0; 64]);
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    for _ in 0..count {
        let sent = Instant::now();
        client.write_all(&request)?;
        client.read_exact(&mut reply)?;
        slowest = slowest.max(sent.elapsed());
        if reply != request {
            return Err("the reply is not what was sent".into());
        }
    }
    let mean = begun.elapsed() / count.max(1);
    println!("{what} from {}: {count} replies, mean {mean:?}, slowest {slowest:?}", client.local_address()?);
    Ok(())
}
