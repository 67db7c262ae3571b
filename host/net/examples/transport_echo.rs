//! An echo server: `cargo run --release -p spillway-net --example transport_echo -- 127.0.0.1:7007 [CONTEXTS]`.

use std::net::SocketAddr;

use spillway_net::{Clock, Config, Context, Listeners};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Bytes that a connection may have in flight.
const WINDOW: u32 = 64 << 10;

struct Echo;

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => out.grant(conn, WINDOW),
            Event::Data { bytes, .. } => {
                // A client that does not read its replies is disconnected.
                if out.send(conn, bytes) < bytes.len() {
                    out.abort(conn);
                }
                out.grant(conn, u32::try_from(bytes.len()).unwrap_or(WINDOW));
            }
            Event::Finished => out.finish(conn),
            Event::Room | Event::Acknowledged { .. } | Event::Lost(_) => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:7007").parse()?;
    let contexts = arguments.next().map_or(Ok(1), |count| count.parse())?;
    let (config, clock) = (Config::default(), Clock::start());
    let bound = Listeners::bind(&[address], contexts, &config)?;
    println!("echoing on {}", bound.addresses()[0]);
    std::thread::scope(|scope| {
        for listeners in bound.into_contexts() {
            let hook = |notice| eprintln!("{notice}");
            let mut context = Context::new(config.clone(), listeners, clock, Echo, hook)?;
            scope.spawn(move || {
                context.command(|_, _, sockets| sockets.set_listening(0, true));
                if let Err(error) = context.run() {
                    eprintln!("stopped: {error}");
                }
            });
        }
        Ok::<(), std::io::Error>(())
    })?;
    Ok(())
}
