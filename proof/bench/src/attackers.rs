//! Programs that attack helpers and servers, for the experiment `attacks`: the hidden command `attack`. Each one goes on until
//! it is killed, for a minute at most, and comes back at once when it is thrown out.

mod link;
mod stderr;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_wire::{Connect, Control, Id};

use link::RawLink;

/// How long an attacker waits for a connection; a full backlog takes longer.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// After everything has been looked at, and where nothing can be done at the moment.
const PAUSE: Duration = Duration::from_millis(20);
/// An address that no helper and no server accepts from a client.
const FOREIGN: [u8; 4] = [203, 0, 113, 9];
/// An attack ends by itself after this time.
const ENDS_AFTER: Duration = Duration::from_secs(60);
/// Frames written at a time.
const FRAMES: usize = 2_048;
/// Clients that ask for a large value name it so.
pub const LARGE_KEY: &str = "large";
/// Requests for the large value that each slow reader sends.
const SLOW_REQUESTS: usize = 3;

/// What an attacker needs to know.
struct Plan {
    targets: Vec<SocketAddr>,
    key: Option<PathBuf>,
    count: usize,
}

/// Attacks as these words say: NAME --target ADDR… [--key FILE] [--count N]; or `full-stderr` or `broken-stderr`, then a
/// command to run with such a standard error. Returns only when it cannot begin.
pub fn serve(words: &[String]) -> Result<(), String> {
    let (name, rest) = words.split_first().ok_or("which attack?")?;
    match name.as_str() {
        "full-stderr" => return stderr::run(rest, stderr::Fault::Full),
        "broken-stderr" => return stderr::run(rest, stderr::Fault::Broken),
        _ => {}
    }
    let plan = Plan::parse(rest)?;
    match name.as_str() {
        "strangers" => strangers(&plan),
        "slow-readers" => slow_readers(&plan),
        "refusals" => flooded(&plan, &refusals),
        "credits" => flooded(&plan, &credits),
        "high-ids" => high_ids(&plan),
        other => Err(format!("there is no attack {other}")),
    }
}

impl Plan {
    fn parse(words: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { targets: Vec::new(), key: None, count: 1 };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--target" => plan.targets.push(value.parse().map_err(|e| format!("{value}: {e}"))?),
                "--key" => plan.key = Some(value.into()),
                "--count" => plan.count = value.parse().map_err(|e| format!("{value}: {e}"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        if plan.targets.is_empty() { Err("no --target".into()) } else { Ok(plan) }
    }

    /// The target of one of the attacker's connections.
    fn target(&self, number: usize) -> SocketAddr {
        self.targets[number % self.targets.len()]
    }

    fn link(&self, number: usize) -> Result<RawLink, String> {
        let file = self.key.as_ref().ok_or("this attack needs a --key")?;
        let key = spillway_keys::read_key_file(file).map_err(|e| e.to_string())?;
        RawLink::open(self.target(number), &key)
    }
}

/// Holds connections that say nothing, and opens each again as soon as it is closed.
fn strangers(plan: &Plan) -> ! {
    hold(plan, &|number| TcpStream::connect_timeout(&plan.target(number), CONNECT_WITHIN).ok())
}

/// Holds connections that ask for large values and never read them.
fn slow_readers(plan: &Plan) -> ! {
    let request = format!("get {LARGE_KEY}\r\n").repeat(SLOW_REQUESTS);
    hold(plan, &|number| {
        let mut stream = TcpStream::connect_timeout(&plan.target(number), CONNECT_WITHIN).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    })
}

/// Ends this process after a minute: memory that an attack takes without bound is not to take the machine as well.
fn end_in_time() {
    std::thread::spawn(|| {
        std::thread::sleep(ENDS_AFTER);
        std::process::exit(0);
    });
}

/// Holds as many connections as the plan says, and opens each again when the other end closes it.
fn hold(plan: &Plan, open: &dyn Fn(usize) -> Option<TcpStream>) -> ! {
    end_in_time();
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

/// Whether the other end has closed; what it has sent stays unread.
fn is_closed(stream: &TcpStream) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(ended)
}

/// Opens links with a client's key, each with one connection of the highest id that the other end allows, and holds them.
fn high_ids(plan: &Plan) -> Result<(), String> {
    // A key that is not there is worth a message; a link that fails is tried again.
    plan.link(0).map(drop)?;
    let open = |number: usize| {
        let mut link = plan.link(number).ok()?;
        let mut frames = Vec::new();
        link.connect(Id(link.connections_max), link.local).emit_into(&mut frames);
        link.stream.write_all(&frames).ok()?;
        Some(link.stream)
    };
    hold(plan, &open)
}

/// Opens a link, writes the same frames over and over without ever reading, and opens another when it ends.
fn flooded(plan: &Plan, frames: &dyn Fn(&RawLink) -> Flood) -> Result<(), String> {
    plan.link(0).map(drop)?;
    end_in_time();
    let mut number = 0;
    loop {
        if let Ok(mut link) = plan.link(number) {
            let Flood { first, again } = frames(&link);
            let mut written = link.stream.write_all(&first);
            while written.is_ok() {
                written = link.stream.write_all(&again);
            }
        }
        number += 1;
        std::thread::sleep(PAUSE);
    }
}

/// What a flooding link writes: once, and then for ever.
struct Flood {
    first: Vec<u8>,
    again: Vec<u8>,
}

/// Connections of a foreign address, each of which is refused.
fn refusals(link: &RawLink) -> Flood {
    let mut again = Vec::new();
    for number in 0..FRAMES as u32 {
        let id = Id(1 + number % link.connections_max);
        let client = SocketAddr::from((FOREIGN, 1_024 + (number % 60_000) as u16));
        link.connect(id, client).emit_into(&mut again);
    }
    Flood { first: Vec::new(), again }
}

/// One connection, and credit for it without end.
fn credits(link: &RawLink) -> Flood {
    let (mut first, mut again) = (Vec::new(), Vec::new());
    let id = Id(1);
    link.connect(id, link.local).emit_into(&mut first);
    for _ in 0..FRAMES {
        Control::Credit(1 << 20).emit(id, &mut again);
    }
    Flood { first, again }
}

/// A *connect* on its way out.
struct Connecting(Id, Connect);

impl Connecting {
    fn emit_into(&self, frames: &mut Vec<u8>) {
        Control::Connect(self.1).emit(self.0, frames);
    }
}

impl RawLink {
    fn connect(&self, id: Id, client: SocketAddr) -> Connecting {
        Connecting(id, Connect { client, server: None, credit: 1 << 16, session: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_wrong_words_are_told() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let plan = Plan::parse(&words("--target 10.0.0.1:5 --target 10.0.0.2:6 --count 7")).unwrap();
        assert_eq!((plan.targets.len(), plan.count, plan.target(3).port()), (2, 7, 6));
        for wrong in ["", "--count 3", "--target", "--target nowhere", "--tarmac 1"] {
            assert!(Plan::parse(&words(wrong)).is_err(), "{wrong}");
        }
        assert!(serve(&words("gossip --target 10.0.0.1:5")).unwrap_err().contains("no attack gossip"));
        assert!(serve(&words("credits --target 10.0.0.1:5")).unwrap_err().contains("needs a --key"));
    }
}
