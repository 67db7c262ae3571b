//! Moves a connection over loopback from one socket to another, and prints the time of each step:
//! `cargo run --release -p spillway-capture --example capture_steps -- [MOVES] [UNSENT_BYTES] [PROGRAMS]`. Needs root. PROGRAMS:
//! `none` (captured sockets drop segments), `filter` (they copy them; the default), or `all` (states have TS.Recent, too). The
//! last row is a capture that ends without a move, with copies that are injected.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use spillway_capture::{Capturer, CopyLimits, Injector, import};

#[path = "../tests/linux/programs.rs"]
mod programs;

const STEPS: [&str; 5] = ["export", "close", "import", "go live", "total"];
/// Segments that reach a socket whose connection does not move.
const COPIES: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default| arguments.get(at).map_or(Ok(default), |text: &String| text.parse::<usize>());
    let (moves, unsent_bytes) = (number(0, 10_000)?, number(1, 0)?);
    let programs = arguments.get(2).map_or("filter", String::as_str);
    let mut capturer = capturer(programs)?;
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
        let start = Instant::now();
        let captured = capturer.export(server)?;
        let exported = Instant::now();
        let state = captured.state().clone();
        captured.close_without_grace()?;
        let closed = Instant::now();
        let restored = import(&state)?;
        let imported = Instant::now();
        let live = restored.go_live(&injector).map_err(|failed| failed.error)?;
        let end = Instant::now();
        let steps = [exported - start, closed - exported, imported - closed, end - imported, end - start];
        for (times, step) in times.iter_mut().zip(steps) {
            times.push(step.as_nanos());
        }
        live.fault.map_or(Ok(()), Err)?;
        server = live.socket.into();
        server.read_exact(&mut [0; 6])?;
        client.read_exact(&mut bytes)?;
    }
    for (name, times) in STEPS.into_iter().zip(times) {
        print(name, times);
    }
    if programs == "none" {
        return Ok(());
    }
    client.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..moves.div_ceil(10) {
        let captured = capturer.export(server)?;
        for _ in 0..COPIES {
            client.write_all(&[1; 100])?;
        }
        let start = Instant::now();
        let resumed = captured.resume(&injector)?;
        times.push(start.elapsed().as_nanos());
        server = resumed.socket.into();
        server.read_exact(&mut [0; 100 * COPIES])?;
    }
    print(&format!("resume, {COPIES} copies"), times);
    Ok(())
}

fn print(name: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1_000] as f64 / 1_000.0;
    println!("{name:>16}: median {:.1} µs, p99 {:.1} µs", at(500), at(990));
}

fn capturer(programs: &str) -> Result<Capturer, Box<dyn Error>> {
    let dropping = Capturer::open()?;
    let copying = |capturer: Capturer| capturer.copying(programs::Filter::load(), CopyLimits::default());
    match programs {
        "none" => Ok(dropping),
        "filter" => Ok(copying(dropping)),
        "all" => Ok(copying(dropping).reading_stamps(programs::Stamps::load())),
        other => Err(format!("unknown programs {other}: none, filter or all").into()),
    }
}
