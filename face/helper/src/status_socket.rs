//! Status for whoever may connect to a UNIX socket: one JSON document for each connection.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where `spillway status` looks when it is not told.
pub const DEFAULT_PATH: &str = "/run/spillway/helper.sock";

/// A reader that does not read is dropped after this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any status has.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The socket. Removed when dropped.
#[derive(Debug)]
pub struct StatusServer {
    listener: UnixListener,
    path: PathBuf,
}

impl StatusServer {
    /// Makes the socket, for its owner and group (mode 0660). One that a killed helper left is replaced.
    ///
    /// # Errors
    /// `AddrInUse` where another helper answers, or where there is a file that is no socket.
    pub fn bind(path: &Path) -> io::Result<StatusServer> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            result => result?,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
        Ok(StatusServer { listener, path: path.to_owned() })
    }

    /// Another handle to the socket, for the thread that serves it.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        // Gone already, or not ours to remove: nothing to be done about it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether this is the socket of a program that is gone.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && matches!(UnixStream::connect(path), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Answers every connection with what `status` gives. Ends when the socket fails.
pub fn serve(listener: &UnixListener, mut status: impl FnMut() -> String) {
    for stream in listener.incoming() {
        match stream {
            // A reader that went away or does not read misses its answer; the next one is not concerned.
            Ok(mut stream) => drop(answer(&mut stream, &status())),
            // Out of descriptors: not to spin.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(stream: &mut UnixStream, text: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())
}

/// Asks a helper for its status: a JSON document.
pub fn query(path: &Path) -> io::Result<String> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("spillway-status-{}-{name}", std::process::id()))
    }

    #[test]
    fn answers_its_group_replaces_what_was_left_and_cleans_up() {
        let path = path("answers");
        let server = StatusServer::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let listener = server.listener().unwrap();
        std::thread::spawn(move || serve(&listener, || "{}".to_owned()));
        assert_eq!(query(&path).unwrap(), "{}");
        assert_eq!(query(&path).unwrap(), "{}");
        let error = StatusServer::bind(&path).expect_err("it answers");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(server);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        drop(StatusServer::bind(&path).expect("nobody answers there"));
        fs::write(&path, "not a socket").unwrap();
        assert!(StatusServer::bind(&path).is_err(), "a file is left alone");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a socket");
        fs::remove_file(&path).unwrap();
    }
}
