//! An HTTP server for a few clients: each connection has its own thread and carries one request. The number of
//! connections, their bytes and their time are bounded.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::places::{Place, Places};
use crate::request::{REQUEST_BYTES_MAX, Request, RequestError};

/// Time limit of a connection, from its beginning to the last byte of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the request, whose head has only a few hundred bytes. Shorter than that of the connection so that
/// status 408 can still be sent, and so that slow peers do not keep the places of others.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Limits on reading bytes that a peer sends after its request. They are read because closing a socket with
/// unread bytes resets the connection, which can truncate the response.
const LEFTOVER_BYTES_MAX: usize = 64 * 1024;
const LEFTOVER_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept: usually the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code; handlers use 200, 404 and 503.
    pub status: u16,
    /// Content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// An answer with a body.
    pub fn ok(content_type: &'static str, body: String) -> Response {
        Response { status: 200, content_type, body }
    }

    /// An answer in plain text.
    pub fn text(status: u16, body: impl Into<String>) -> Response {
        Response { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

/// A running server. Dropping it ends the server.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens, so that an address in use is an error at the program's start. Call [`serve`](Self::serve) to answer
    /// requests.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Answers every request with the result of `handler`, on separate threads. Fails if the host has no threads or
    /// descriptors left.
    pub fn serve(
        listener: TcpListener,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> io::Result<HttpServer> {
        let address = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stopped, handler): (_, Arc<Handler>) = (Arc::clone(&stop), Arc::new(handler));
        let run = move || accept_all(&listener, &stopped, &handler);
        let thread = std::thread::Builder::new().name("http".into()).spawn(run)?;
        Ok(HttpServer { address, stop, thread: Some(thread) })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        // Fails only when the counter is full: then the descriptor is readable already.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_all(listener: &TcpListener, stop: &OwnedFd, handler: &Arc<Handler>) {
    let places = Places::default();
    loop {
        let mut waits = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // After a signal the loop polls again.
        let _ = poll(&mut waits, None);
        if !waits[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, peer)) => start_answer(stream, places.take(peer.ip()), handler),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// `place`: `None` if the peer's connections or all connections are too many.
fn start_answer(stream: TcpStream, place: Option<Place>, handler: &Arc<Handler>) {
    let Some(place) = place else {
        // The socket's buffer is empty, so the answer fits. If the write fails, only this peer's answer is lost.
        let _ = stream.set_nonblocking(true);
        let _ = (&stream).write(BUSY);
        // Read a request that has arrived: closing with unread bytes would reset the connection and the answer.
        let _ = (&stream).read(&mut [0; REQUEST_BYTES_MAX]);
        return;
    };
    let handler = Arc::clone(handler);
    let run = move || {
        let _place = place;
        // An error means that the peer closed the connection: only this peer's answer is lost.
        let _ = answer(stream, &*handler);
    };
    // If no thread can be started, dropping the stream closes the connection, and the peer tries again.
    let _ = std::thread::Builder::new().name("http-answer".into()).spawn(run);
}

fn answer(mut stream: TcpStream, handler: &Handler) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let began = Instant::now();
    let deadline = began + CONNECTION_TIMEOUT;
    let (head_only, response) = match read_request(&mut stream, began + REQUEST_TIMEOUT)? {
        None => return Ok(()),
        Some(Ok(request)) => (request.head_only, handler(&request)),
        Some(Err(error)) => (false, error_response(error)),
    };
    let body = if head_only { "" } else { response.body.as_str() };
    write_until(&mut stream, response_head(&response).as_bytes(), deadline)?;
    write_until(&mut stream, body.as_bytes(), deadline)?;
    stream.shutdown(Shutdown::Write)?;
    read_leftover(&mut stream)
}

/// Returns `None` if the peer closed the connection without a request.
fn read_request(
    stream: &mut TcpStream,
    deadline: Instant,
) -> io::Result<Option<Result<Request, RequestError>>> {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let mut length = 0;
    loop {
        if !set_remaining_timeout(deadline, |left| stream.set_read_timeout(Some(left)))? {
            return Ok(Some(Err(RequestError::TimedOut)));
        }
        match stream.read(&mut bytes[length..]) {
            Ok(0) => return Ok((length > 0).then_some(Err(RequestError::Malformed))),
            Ok(count) => length += count,
            Err(error) if is_timeout(&error) => return Ok(Some(Err(RequestError::TimedOut))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(parsed) = Request::parse(&bytes[..length]).transpose() {
            return Ok(Some(parsed));
        }
    }
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        if !set_remaining_timeout(deadline, |left| stream.set_write_timeout(Some(left)))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_leftover(stream: &mut TcpStream) -> io::Result<()> {
    let (mut bytes_left, mut buffer) = (LEFTOVER_BYTES_MAX, [0; 4096]);
    let deadline = Instant::now() + LEFTOVER_TIMEOUT;
    while bytes_left > 0 && set_remaining_timeout(deadline, |time| stream.set_read_timeout(Some(time)))? {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes_left = bytes_left.saturating_sub(count),
        }
    }
    Ok(())
}

/// Sets a timeout to the time left until the deadline. Returns false if the deadline has passed.
fn set_remaining_timeout(
    deadline: Instant,
    set: impl FnOnce(Duration) -> io::Result<()>,
) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    set(left)?;
    Ok(true)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn error_response(error: RequestError) -> Response {
    let (status, reason) = error.status();
    Response::text(status, format!("{reason}\n"))
}

fn response_head(response: &Response) -> String {
    let reason = match response.status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        400 => "Bad Request",
        503 => "Service Unavailable",
        // The phrase is optional (RFC 9112 section 4).
        _ => "",
    };
    let allow = if response.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    // Pages contain inline styles and no scripts; a script injected through a client's name would not run.
    format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src \
         'unsafe-inline'\r\nConnection: close\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len()
    )
}
