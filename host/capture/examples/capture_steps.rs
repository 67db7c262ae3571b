//! Moves a connection over loopback from one socket to another, and prints the time of each step:
//! `cargo run --release -p spillway-capture --example capture_steps -- [MOVES] [UNSENT_BYTES]`. Needs root.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use spillway_capture::{Injector, export, import};

const STEPS: [&str; 4] = ["export", "close silently", "import", "go live"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (moves, unsent_bytes) = (number(10_000)?, number(0)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    let injector = Injector::open()?;
    let mut times = [const { Vec::new() }; STEPS.len()];
    let (mut bytes, payload) = (vec![0; unsent_bytes + 1], vec![7; unsent_bytes + 1]);
    for _ in 0..moves {
        // A request was read, and the reply is written but not read by the client.
        client.write_all(b"request")?;
        server.read_exact(&mut bytes[..1])?;
        server.write_all(&payload)?;
        let mut last = Instant::now();
        let mut step = |index: usize| {
            let now = Instant::now();
            times[index].push((now - last).as_nanos());
            last = now;
        };
        let captured = export(server)?;
        step(0);
        let (state, options) = (captured.state().clone(), captured.options().clone());
        captured.close_silently()?;
        step(1);
        let restored = import(&state, &options)?;
        step(2);
        let live = restored.go_live(&injector).map_err(|failed| failed.error)?;
        step(3);
        live.fault.map_or(Ok(()), Err)?;
        server = live.socket.into();
        server.read_exact(&mut [0; 6])?;
        client.read_exact(&mut bytes)?;
    }
    for (name, mut times) in STEPS.into_iter().zip(times) {
        times.sort_unstable();
        let at = |permille: usize| times[(times.len() - 1) * permille / 1_000] as f64 / 1_000.0;
        println!("{name:>15}: median {:.1} µs, p99 {:.1} µs", at(500), at(990));
    }
    Ok(())
}
