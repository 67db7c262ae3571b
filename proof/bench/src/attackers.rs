//! Programs that attack helpers and servers in the experiment `attacks`: the hidden command `attack`. An attacker runs
//! until it is killed, at most for a minute, and reconnects when its target closes a connection.

mod link;
mod stderr;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_wire::{Connect, Control, Id};

use link::RawLink;

/// Timeout for connecting. A target with a full backlog does not answer in time; the attacker then retries.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two passes over all connections, and before a retry.
const PAUSE: Duration = Duration::from_millis(20);
/// A client address that helpers and servers refuse (TEST-NET-3, RFC 5737).
const FOREIGN: [u8; 4] = [203, 0, 113, 9];
const DURATION_MAX: Duration = Duration::from_secs(60);
const FRAMES_PER_WRITE: usize = 2_048;
/// Key of the large value that slow readers request.
pub const LARGE_KEY: &str = "large";
/// Requests for the large value, from each slow reader.
const SLOW_REQUESTS: usize = 3;

struct Plan {
    targets: Vec<SocketAddr>,
    key: Option<PathBuf>,
    count: usize,
}

/// Runs the attack `NAME --target ADDR… [--key FILE] [--count N]`, or a command with a faulty standard error:
/// `full-stderr COMMAND…` or `broken-stderr COMMAND…`. Returns only if the start failed.
pub fn serve(arguments: &[String]) -> Result<(), String> {
    let (name, rest) = arguments.split_first().ok_or("give the name of an attack")?;
    match name.as_str() {
        "full-stderr" => return stderr::run(rest, stderr::Fault::Full),
        "broken-stderr" => return stderr::run(rest, stderr::Fault::Broken),
        _ => {}
    }
    let plan = Plan::parse(rest)?;
    match name.as_str() {
        "strangers" => strangers(&plan),
        "slow-readers" => slow_readers(&plan),
        "refusals" => flood(&plan, &refusals),
        "credits" => flood(&plan, &credits),
        "high-ids" => high_ids(&plan),
        other => Err(format!("unknown attack {other}")),
    }
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { targets: Vec::new(), key: None, count: 1 };
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--target" => plan.targets.push(value.parse().map_err(|e| format!("{value}: {e}"))?),
                "--key" => plan.key = Some(value.into()),
                "--count" => plan.count = value.parse().map_err(|e| format!("{value}: {e}"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        if plan.targets.is_empty() { Err("give at least one --target ADDR".into()) } else { Ok(plan) }
    }

    /// The target of connection `number`, round robin over all targets.
    fn target(&self, number: usize) -> SocketAddr {
        self.targets[number % self.targets.len()]
    }

    fn open_link(&self, number: usize) -> Result<RawLink, String> {
        let file = self.key.as_ref().ok_or("this attack needs a --key")?;
        let key = spillway_keys::read_key_file(file).map_err(|e| e.to_string())?;
        RawLink::open(self.target(number), &key)
    }
}

/// Holds connections that send nothing, and reopens each one when the target closes it.
fn strangers(plan: &Plan) -> ! {
    hold(plan, &|number| TcpStream::connect_timeout(&plan.target(number), CONNECT_TIMEOUT).ok())
}

/// Holds connections that request large values and never read the replies.
fn slow_readers(plan: &Plan) -> ! {
    let request = format!("get {LARGE_KEY}\r\n").repeat(SLOW_REQUESTS);
    hold(plan, &|number| {
        let mut stream = TcpStream::connect_timeout(&plan.target(number), CONNECT_TIMEOUT).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    })
}

/// Ends this process after [`DURATION_MAX`], so that an attack whose memory grows without bound cannot exhaust the
/// machine.
fn exit_at_deadline() {
    std::thread::spawn(|| {
        std::thread::sleep(DURATION_MAX);
        std::process::exit(0);
    });
}

/// Holds `plan.count` connections, and reopens each one when the target closes it.
fn hold(plan: &Plan, open: &dyn Fn(usize) -> Option<TcpStream>) -> ! {
    exit_at_deadline();
    let mut held: Vec<Option<TcpStream>> = (0..plan.count).map(|_| None).collect();
    loop {
        for (number, slot) in held.iter_mut().enumerate() {
            if slot.as_ref().is_none_or(is_closed) {
                *slot = open(number);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether the target has closed the connection. Leaves received bytes unread.
fn is_closed(stream: &TcpStream) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(ended)
}

/// Holds links with a client's key, each with one connection of the highest id that the target allows.
fn high_ids(plan: &Plan) -> Result<(), String> {
    // The first link detects a wrong key or target. Links that fail later are retried without a message.
    plan.open_link(0).map(drop)?;
    let open = |number: usize| {
        let mut link = plan.open_link(number).ok()?;
        let mut frames = Vec::new();
        link.connect_frame(Id(link.connections_max), link.local_address).emit_into(&mut frames);
        link.stream.write_all(&frames).ok()?;
        Some(link.stream)
    };
    hold(plan, &open)
}

/// Opens a link, writes the same frames again and again without reading, and opens the next link when this one breaks.
fn flood(plan: &Plan, make_frames: &dyn Fn(&RawLink) -> Flood) -> Result<(), String> {
    plan.open_link(0).map(drop)?;
    exit_at_deadline();
    let mut number = 0;
    loop {
        if let Ok(mut link) = plan.open_link(number) {
            let Flood { once, repeated } = make_frames(&link);
            let mut written = link.stream.write_all(&once);
            while written.is_ok() {
                written = link.stream.write_all(&repeated);
            }
        }
        number += 1;
        std::thread::sleep(PAUSE);
    }
}

struct Flood {
    once: Vec<u8>,
    repeated: Vec<u8>,
}

/// Connections from a foreign address: the target refuses each one.
fn refusals(link: &RawLink) -> Flood {
    let mut repeated = Vec::new();
    for number in 0..FRAMES_PER_WRITE as u32 {
        let id = Id(1 + number % link.connections_max);
        let client = SocketAddr::from((FOREIGN, 1_024 + (number % 60_000) as u16));
        link.connect_frame(id, client).emit_into(&mut repeated);
    }
    Flood { once: Vec::new(), repeated }
}

fn credits(link: &RawLink) -> Flood {
    let (mut once, mut repeated) = (Vec::new(), Vec::new());
    let id = Id(1);
    link.connect_frame(id, link.local_address).emit_into(&mut once);
    for _ in 0..FRAMES_PER_WRITE {
        Control::Credit(1 << 20).emit(id, &mut repeated);
    }
    Flood { once, repeated }
}

struct ConnectFrame(Id, Connect);

impl ConnectFrame {
    fn emit_into(&self, frames: &mut Vec<u8>) {
        Control::Connect(self.1).emit(self.0, frames);
    }
}

impl RawLink {
    fn connect_frame(&self, id: Id, client: SocketAddr) -> ConnectFrame {
        ConnectFrame(id, Connect { client, server: None, credit: 1 << 16, session: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_parsed_and_wrong_arguments_are_reported() {
        let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let plan = Plan::parse(&split("--target 10.0.0.1:5 --target 10.0.0.2:6 --count 7")).unwrap();
        assert_eq!((plan.targets.len(), plan.count, plan.target(3).port()), (2, 7, 6));
        for wrong in ["", "--count 3", "--target", "--target nowhere", "--tarmac 1"] {
            assert!(Plan::parse(&split(wrong)).is_err(), "{wrong}");
        }
        assert!(serve(&split("gossip --target 10.0.0.1:5")).unwrap_err().contains("unknown attack gossip"));
        assert!(serve(&split("credits --target 10.0.0.1:5")).unwrap_err().contains("needs a --key"));
    }
}
