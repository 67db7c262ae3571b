//! A replica to which `leader` forwards: it applies requests in the order of their arrival, and answers each.
//!
//! ```text
//! replica --listen 127.0.0.1:7500
//! ```
//!
//! To apply a request is to append it to a log, of which only the length is kept; the reply is the request. A parcel
//! contains the frames of many clients, and the replies to it make one parcel, whose frames the leader sends unchanged.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use spillway_batch::Assembler;
use spillway_wire::{Control, Disassembler, Kind, Piece};

/// A parcel consists of a link and a length, four bytes each, and frames. This bit of the length is set if the frames
/// are control messages.
const CONTROL: u32 = 1 << 31;
/// Maximum length of a parcel's frames.
const PARCEL_BYTES_MAX: u32 = 1 << 24;

static LOG_BYTES: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, option, listen] = arguments.as_slice() else {
        eprintln!("usage: replica --listen ADDRESS:PORT");
        return ExitCode::FAILURE;
    };
    let listener = match (option.as_str(), TcpListener::bind(listen)) {
        ("--listen", Ok(listener)) => listener,
        (_, Err(error)) => {
            eprintln!("replica: cannot listen on {listen}: {error}");
            return ExitCode::FAILURE;
        }
        _ => {
            eprintln!("replica: unknown argument {option}");
            return ExitCode::FAILURE;
        }
    };
    match listener.local_addr() {
        Ok(address) => println!("listening on {address}"),
        Err(error) => eprintln!("replica: {error}"),
    }
    for leader in listener.incoming().flatten() {
        std::thread::spawn(move || match serve(&leader) {
            Ok(()) => eprintln!(
                "replica: a leader closed its connection; the log has {} bytes",
                LOG_BYTES.load(Ordering::Relaxed)
            ),
            Err(error) => eprintln!("replica: {error}"),
        });
    }
    ExitCode::SUCCESS
}

fn serve(leader: &TcpStream) -> io::Result<()> {
    leader.set_nodelay(true)?;
    let mut input = BufReader::with_capacity(256 * 1024, leader);
    let (mut parcel, mut replies) = (Vec::new(), Assembler::new());
    loop {
        let mut head = [0; 8];
        match input.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let [l0, l1, l2, l3, n0, n1, n2, n3] = head;
        let (link, length) = ([l0, l1, l2, l3], u32::from_be_bytes([n0, n1, n2, n3]) & !CONTROL);
        if length > PARCEL_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        parcel.resize(length as usize, 0);
        input.read_exact(&mut parcel)?;
        let is_control = apply(&parcel, &mut replies)?;
        let batch = replies.take();
        let length = batch.len() as u32 | if is_control { CONTROL } else { 0 };
        let mut output = leader;
        output.write_all(&[link, length.to_be_bytes()].concat())?;
        output.write_all(batch.as_slice())?;
        replies.recycle(batch);
    }
}

/// Applies a parcel's requests. *finish* and *close* are echoed, after the replies to all requests before them. Returns
/// whether the parcel contains control messages.
fn apply(mut parcel: &[u8], replies: &mut Assembler) -> io::Result<bool> {
    let mut disassembler = Disassembler::new();
    let mut is_control = false;
    while let Some(piece) = disassembler.next(&mut parcel).map_err(io::Error::other)? {
        match piece {
            Piece::Data { id, bytes, .. } => {
                LOG_BYTES.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                replies.data(Kind::Reply, id, bytes);
            }
            Piece::Control { id, control: control @ (Control::Finish(_) | Control::Close(_)) } => {
                is_control = true;
                replies.control(id, control);
            }
            Piece::Control { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(is_control)
}
