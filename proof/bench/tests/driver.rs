//! Links of the driver for cost experiments, with the echo server.

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use spillway_batch::Encryption;
use spillway_bench::driver::{LinkDriver, Links};
use spillway_load::protocol::echo::Echo;
use spillway_load::protocol::{Protocol, Request, SentRequest, Verdict};

/// Long enough for a machine that compiles at the same time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The echo protocol with a count of outstanding requests.
struct Counted {
    echo: Echo,
    under_way: Rc<Cell<i64>>,
}

impl Protocol for Counted {
    fn draw(&mut self) -> Request {
        self.echo.draw()
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> SentRequest {
        self.under_way.set(self.under_way.get() + 1);
        self.echo.encode(request, out)
    }

    fn check(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        let verdict = self.echo.check(sent, reply);
        if matches!(verdict, Verdict::Right(_)) {
            self.under_way.set(self.under_way.get() - 1);
        }
        verdict
    }

    fn explain(&self, sent: &SentRequest, reply: &[u8]) -> String {
        self.echo.explain(sent, reply)
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn finish_collects_all_outstanding_replies() {
    let key_file = std::env::temp_dir().join(format!("spillway-bench-driver-{}.key", std::process::id()));
    spillway_keys::write_new_key_file(&key_file).unwrap();
    let (plain, link) = (free_port(), free_port());
    let arguments = [
        "--listen",
        &plain.to_string(),
        "--link",
        &link.to_string(),
        "--key",
        key_file.to_str().unwrap(),
        "--allow-clients",
        "127.0.0.0/8",
    ]
    .map(String::from);
    // The server runs until this process ends.
    std::thread::spawn(move || spillway_bench::echo::serve(arguments.into_iter()));
    let deadline = Instant::now() + TIMEOUT;
    while std::net::TcpStream::connect(plain).is_err() {
        assert!(Instant::now() < deadline, "the echo server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let key = spillway_keys::read_key_file(&key_file).unwrap();
    std::fs::remove_file(&key_file).unwrap();

    let under_way = Rc::new(Cell::new(0));
    let open = |port: u16, encryption| {
        let first_client = SocketAddr::from(([127, 0, 0, 1], port));
        let driver = LinkDriver::open(link, key.clone(), encryption, first_client, 5).unwrap();
        let echo = Echo::new(u64::from(port), 64);
        (driver, Counted { echo, under_way: Rc::clone(&under_way) })
    };
    let mut links =
        Links::start(vec![open(20_000, Encryption::Required), open(21_000, Encryption::Off)]).unwrap();
    assert_eq!(under_way.get(), 10);
    assert_eq!(links.collect_and_send(), Ok(10));
    assert_eq!(under_way.get(), 10, "a turn should send the next batches");
    assert_eq!(links.finish(), Ok(10));
    assert_eq!(under_way.get(), 0);
}
