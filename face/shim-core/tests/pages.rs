//! A status page is valid as long as its server runs.

#[path = "support/kinds/mod.rs"]
mod kinds;
mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use spillway_auth::Key;
use spillway_batch::Control;
use spillway_session::{ClientSession, StreamLimits};
use spillway_shim_core::status::find_pages;
use spillway_wire::session::SessionId;
use support::driver::{Driver, Relayed, WAIT_MAX};
use support::process::{self, Server, kind_command};

#[test]
#[ignore = "the server of the test below, which starts it as a process with the preload library"]
fn server() {
    let (Ok(kind), Ok(address)) = (std::env::var("SERVER_KIND"), std::env::var("SERVER_ADDRESS")) else {
        return;
    };
    kinds::serve(&kind, address.parse().unwrap())
}

/// A directory for pages. Removed with its contents when dropped.
struct Pages(PathBuf);

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The server creates the child by a system call, so no handler of `fork` closes the page's descriptor in the child.
#[test]
fn page_of_a_killed_server_is_removed_although_a_child_has_it_open() {
    let pages = Pages(std::env::temp_dir().join(format!("spillway-pages-{}", std::process::id())));
    std::fs::create_dir_all(&pages.0).unwrap();
    // SAFETY: no other thread of this process reads or changes the environment at this time.
    unsafe { std::env::set_var("SPILLWAY_STATUS_DIR", &pages.0) };
    let mut server = Server::start(|address| kind_command("raw-fork", address));
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"x", b"x"), b"x");
    let counts = || {
        let status = find_pages().0.first().expect("the server should have a page").status().unwrap();
        status.links.iter().map(|link| (link.connections, link.sessions)).collect::<Vec<_>>()
    };
    assert_eq!(counts(), [(1, Some(0))], "the page should count the plain client");
    let mut session = ClientSession::new(Key::loopback_only(), SessionId([7; 16]), StreamLimits::default());
    let opening = session.open(link.now(), SocketAddr::from(([127, 0, 0, 7], 4_321)), None);
    let carrier = link.link.open_with_message(opening).unwrap();
    let answer = link.next_relayed(carrier);
    assert!(matches!(answer, Relayed::Control(Control::Resumed(_))), "{answer:?}");
    assert_eq!(counts(), [(2, Some(1))], "the page should count the plain client and the session");
    let [child] = server.children()[..] else { panic!("the server should have one running child") };
    let is_found = |pid: u32| find_pages().0.iter().any(|page| page.pid == pid);
    let pid = server.pid();
    // Twice, because a reader that closes the page must not release the server's lock.
    assert!(is_found(pid) && is_found(pid), "a running server's page should be found");
    server.kill();
    let deadline = Instant::now() + WAIT_MAX;
    while is_found(pid) || std::fs::read_dir(&pages.0).unwrap().count() > 0 {
        assert!(
            Instant::now() < deadline,
            "the page of the killed server should be removed within {WAIT_MAX:?}"
        );
    }
    let open = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten();
    let mut open = open.filter_map(|link| std::fs::read_link(link.path()).ok());
    assert!(open.any(|target| target.starts_with(&pages.0)), "the child should still have the page open");
    process::kill(child);
}
