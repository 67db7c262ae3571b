//! The socket's file, and the limits on connections.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("spillway-admin-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn serve(path: &Path, bounds: Bounds) -> AdminServer {
    let server = AdminServer::bind(path, None).unwrap();
    server.serve(bounds, |line, _| format!("<{line}>"), |why| format!("no: {why}")).unwrap();
    server
}

#[test]
fn socket_file_has_mode_0660_and_is_removed_on_drop() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    let server = serve(&path, Bounds::default());
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert_eq!(send_request(&path, "hello", TIMEOUT).unwrap(), "<hello>");
    assert_eq!(send_request(&path, "", TIMEOUT).unwrap(), "<>");
    let error =
        AdminServer::bind(&path, None).expect_err("the socket of a running server should not be replaced");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn only_a_socket_without_a_server_is_replaced() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    drop(UnixListener::bind(&path).unwrap());
    drop(AdminServer::bind(&path, None).expect("the socket of an ended server should be replaced"));

    fs::write(&path, "a file").unwrap();
    assert_eq!(AdminServer::bind(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    fs::remove_file(&path).unwrap();

    // A symbolic link and its target stay, whether the target is a socket without a server or does not exist.
    let target = scratch.path("target");
    drop(UnixListener::bind(&target).unwrap());
    for target in [target.clone(), scratch.path("nothing")] {
        symlink(&target, &path).unwrap();
        assert_eq!(AdminServer::bind(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        fs::remove_file(&path).unwrap();
    }
    assert!(target.exists() && !scratch.path("nothing").exists());
}

#[test]
fn drop_keeps_a_file_that_another_server_has_created() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    let first = AdminServer::bind(&path, None).unwrap();
    fs::remove_file(&path).unwrap();
    let second = serve(&path, Bounds::default());
    drop(first);
    assert_eq!(send_request(&path, "still", TIMEOUT).unwrap(), "<still>");
    drop(second);
}

#[test]
fn connections_are_bounded_in_bytes_time_and_number() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    let bounds = Bounds {
        request_bytes: 100,
        timeout: Duration::from_millis(300),
        connections_max: 2,
        ..Bounds::default()
    };
    let _server = serve(&path, bounds);
    assert!(send_request(&path, &"x".repeat(200), TIMEOUT).unwrap().contains("too long"));
    // An earlier connection may still count, although its answer has arrived. Then the next one is refused,
    // and reset because its request stays unread.
    let answer_to = |bytes: &[u8]| {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut stream = UnixStream::connect(&path).unwrap();
            let mut text = String::new();
            let outcome = stream.write_all(bytes).and_then(|()| stream.read_to_string(&mut text));
            if outcome.is_ok() && !text.contains("too many") {
                return text;
            }
            assert!(Instant::now() < deadline, "the request should be answered: {outcome:?} after {text:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert!(answer_to(b"\xff\xfe\n").contains("not UTF-8"));
    assert!(answer_to(b"half a line").contains("in time"));
    // Two silent connections reach the limit: a third is refused at once, and served after they have timed out.
    let silent = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let answer = send_request(&path, "third", TIMEOUT).unwrap();
        match answer.as_str() {
            "<third>" => break,
            busy => assert!(busy.contains("too many"), "{busy}"),
        }
        assert!(Instant::now() < deadline, "the third connection should be served after the timeouts");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
}

#[test]
fn request_without_a_server_is_an_error() {
    let scratch = Scratch::new();
    assert_eq!(
        send_request(&scratch.path("none"), "x", TIMEOUT).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    let path = scratch.path("unused");
    drop(UnixListener::bind(&path).unwrap());
    assert_eq!(send_request(&path, "x", TIMEOUT).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn peers_outside_the_admin_group_may_only_read() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    let server = AdminServer::bind(&path, Some(0)).unwrap();
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    server
        .serve(
            Bounds::default(),
            |_, requester| format!("{:?}", requester.rights()),
            |why| format!("no: {why}"),
        )
        .unwrap();
    // The daemon's own user may operate, whether it is root or not.
    assert_eq!(send_request(&path, "", TIMEOUT).unwrap(), "Operate");

    let handler = |operator_group| Handler {
        bounds: Bounds::default(),
        operator_group,
        answer: Box::new(|_, _| String::new()),
        refusal: Box::new(|_| String::new()),
        reader_connections: AtomicU32::new(0),
        operator_connections: AtomicU32::new(0),
        is_closed: Arc::default(),
    };
    let (stream, _other) = UnixStream::pair().unwrap();
    assert_eq!(handler(None).rights(&stream), Rights::Operate);
    assert_eq!(
        handler(Some(u32::MAX)).rights(&stream),
        Rights::Operate,
        "the daemon's own user should operate"
    );

    // Readers may use 8 of the 16 connections.
    let handler = Arc::new(handler(Some(0)));
    let readers: Vec<_> = (0..9).map(|_| ConnectionGuard::new(&handler, Rights::Read)).collect();
    assert!(handler.is_full(Rights::Read));
    let operators: Vec<_> = (0..7).map(|_| ConnectionGuard::new(&handler, Rights::Operate)).collect();
    assert!(!handler.is_full(Rights::Operate));
    let _sixteenth = ConnectionGuard::new(&handler, Rights::Operate);
    assert!(handler.is_full(Rights::Operate));
    drop((readers, operators));
    assert!(!handler.is_full(Rights::Read));
}

#[test]
fn a_peer_that_has_given_up_is_not_connected() {
    let (stream, peer) = UnixStream::pair().unwrap();
    let requester = Requester { stream: &stream, rights: Rights::Operate };
    (&peer).write_all(b"clear\n").unwrap();
    assert!(requester.is_connected());
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(requester.is_connected(), "the peer still reads");
    drop(peer);
    assert!(!requester.is_connected());
}

#[test]
fn a_daemon_sees_that_the_client_of_a_late_request_has_gone() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    // Not served yet, as in a daemon that is stopped: requests wait in the accept queue.
    let server = AdminServer::bind(&path, None).unwrap();
    UnixStream::connect(&path).unwrap().write_all(b"cancelled\n").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let answer = move |line: &str, requester: &Requester<'_>| {
        sender.send((line.to_owned(), requester.is_connected())).unwrap();
        String::from("done")
    };
    server.serve(Bounds::default(), answer, |why| format!("no: {why}")).unwrap();
    assert_eq!(receiver.recv().unwrap(), ("cancelled".to_owned(), false));
    assert_eq!(send_request(&path, "waiting", TIMEOUT).unwrap(), "done");
    assert_eq!(receiver.recv().unwrap(), ("waiting".to_owned(), true));
}

#[test]
fn a_removed_socket_file_is_created_again() {
    let scratch = Scratch::new();
    let path = scratch.path("a.sock");
    let server = serve(&path, Bounds { file_check_interval: Duration::from_millis(1), ..Bounds::default() });
    for _ in 0..3 {
        assert_eq!(send_request(&path, "hello", TIMEOUT).unwrap(), "<hello>");
        fs::remove_file(&path).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        // Until its permissions are set, other users cannot connect.
        while fs::symlink_metadata(&path).map_or(0, |file| file.permissions().mode() & 0o777) != 0o660 {
            assert!(Instant::now() < deadline, "the socket's file should be created again");
            std::thread::yield_now();
        }
    }
    drop(server);
    assert!(!path.exists());
}
