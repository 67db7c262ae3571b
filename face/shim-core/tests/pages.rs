//! Status pages: which process keeps one alive.

#[path = "support/kinds/mod.rs"]
mod kinds;
mod support;

use std::path::PathBuf;
use std::time::Instant;

use spillway_shim_core::status::find;
use support::driver::{Driver, PATIENCE};
use support::process::{self, Server, own_command};

#[test]
#[ignore = "the server of the test below, which starts it as a process with the shim"]
fn server() {
    let (Ok(kind), Ok(address)) = (std::env::var("SERVER_KIND"), std::env::var("SERVER_ADDRESS")) else {
        return;
    };
    kinds::serve(&kind, address.parse().unwrap())
}

/// A directory for pages, removed with what is in it.
struct Pages(PathBuf);

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The server makes the child by a system call of its own, so no handler closes the child's copy of the page's descriptor.
#[test]
fn a_page_is_dead_when_its_server_is_although_a_child_has_it_open() {
    let pages = Pages(std::env::temp_dir().join(format!("spillway-pages-{}", std::process::id())));
    std::fs::create_dir_all(&pages.0).unwrap();
    // SAFETY: no other thread of this process reads or changes the environment at this time.
    unsafe { std::env::set_var("SPILLWAY_STATUS_DIR", &pages.0) };
    let mut server = Server::start(|address| own_command("raw-fork", address));
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"x", b"x"), b"x");
    let [child] = server.children()[..] else { panic!("one child") };
    let named = |pid: u32| find().0.iter().any(|page| page.pid == pid);
    let pid = server.pid();
    assert!(named(pid) && named(pid), "its lock outlives readers");
    server.kill();
    let deadline = Instant::now() + PATIENCE;
    while named(pid) || std::fs::read_dir(&pages.0).unwrap().count() > 0 {
        assert!(Instant::now() < deadline, "the page of a server that is dead stays");
    }
    let open = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten();
    let mut open = open.filter_map(|link| std::fs::read_link(link.path()).ok());
    assert!(open.any(|target| target.starts_with(&pages.0)), "the child still has it open");
    process::kill(child);
}
