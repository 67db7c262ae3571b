//! A proxy before a link port that alters the bytes of each connection once, at a position drawn from a seed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Slightly more bytes than a link's handshake has in either direction.
const HANDSHAKE_BYTES: u32 = 120;
/// Largest distance of an alteration from the end of the handshake.
const DEPTH_BYTES: u32 = 6_000;
/// Maximum number of bytes that are inserted, left out or repeated.
const LENGTH_MAX: u32 = 300;
const CHUNK_BYTES: usize = 16 << 10;
/// Offsets of versions: the lowest and the highest (two bytes) in *hello*, and the chosen one in *welcome*.
const HELLO_VERSIONS: usize = 8;
const WELCOME_VERSION: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    Nothing,
    /// One bit is flipped, or some bytes are inserted, left out or repeated, in one direction.
    Anywhere,
    /// The versions in the handshake are replaced by older ones.
    Versions,
    /// The end of one chunk from the opener, and everything after it, is withheld.
    Tail,
}

impl Tampering {
    const ALL: [Tampering; 4] =
        [Tampering::Nothing, Tampering::Anywhere, Tampering::Versions, Tampering::Tail];
}

/// A proxy before a link port; it stops accepting when dropped.
pub struct TamperingProxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    seed: u64,
    /// Bytes of the plaintext, which must not appear on an encrypted link.
    marker: &'static [u8],
    tampering: AtomicU8,
    /// Connections of earlier generations are closed at their next bytes.
    generation: AtomicU64,
    is_over: AtomicBool,
    connections: AtomicU64,
    alterations: AtomicU64,
    markers: AtomicU64,
}

impl TamperingProxy {
    /// Starts a proxy before a link port that counts the chunks with `marker`.
    pub fn before(
        target: SocketAddr,
        seed: u64,
        tampering: Tampering,
        marker: &'static [u8],
    ) -> TamperingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            seed,
            marker,
            tampering: AtomicU8::new(tampering as u8),
            generation: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            alterations: AtomicU64::new(0),
            markers: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for opener in listener.incoming() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(opener), Ok(server)) = (opener, TcpStream::connect(accepting.target)) else {
                    continue;
                };
                proxy_connection(&accepting, opener, server);
            }
        });
        TamperingProxy { address, shared }
    }

    /// Sets how new connections are altered. Open connections are closed at their next bytes.
    pub fn set_tampering(&self, tampering: Tampering) {
        self.shared.tampering.store(tampering as u8, Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub fn alterations(&self) -> u64 {
        self.shared.alterations.load(Ordering::Relaxed)
    }

    pub fn markers(&self) -> u64 {
        self.shared.markers.load(Ordering::Relaxed)
    }
}

impl Drop for TamperingProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn proxy_connection(shared: &Arc<Shared>, opener: TcpStream, server: TcpStream) {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    let generation = shared.generation.load(Ordering::Relaxed);
    let tampering = Tampering::ALL[usize::from(shared.tampering.load(Ordering::Relaxed))];
    let mut random = Random::new(shared.seed, number);
    let altered_side_is_opener = random.below(2) == 0;
    let alters_both_sides = random.below(3) == 0;
    for (is_from_opener, from, to) in [(true, &opener, &server), (false, &server, &opener)] {
        let plan = match tampering {
            Tampering::Nothing => Plan::Nothing,
            Tampering::Anywhere if is_from_opener == altered_side_is_opener => {
                Plan::Alter(Alteration::draw(&mut random))
            }
            Tampering::Anywhere => Plan::Nothing,
            Tampering::Versions if alters_both_sides || is_from_opener == altered_side_is_opener => {
                Plan::Versions { is_from_opener, version: 1 + random.below(3) as u8 }
            }
            Tampering::Versions => Plan::Nothing,
            Tampering::Tail if is_from_opener => {
                Plan::Withhold { after: u64::from(HANDSHAKE_BYTES), bytes: 1 + random.below(12) as usize }
            }
            Tampering::Tail => Plan::Nothing,
        };
        let (shared, from, to) = (Arc::clone(shared), from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || forward(&shared, generation, from, to, plan));
    }
}

/// Forwards one direction until it ends; then closes both sockets.
fn forward(shared: &Shared, generation: u64, mut from: TcpStream, mut to: TcpStream, plan: Plan) {
    let mut direction =
        Direction { plan, received_bytes: 0, recent: Vec::new(), left_out: 0, withholds_rest: false };
    let mut received = vec![0; CHUNK_BYTES];
    let _ = to.set_nodelay(true);
    while let Ok(count @ 1..) = from.read(&mut received) {
        if shared.generation.load(Ordering::Relaxed) != generation {
            break;
        }
        let mut chunk = received[..count].to_vec();
        if direction.alter(&mut chunk) {
            shared.alterations.fetch_add(1, Ordering::Relaxed);
        }
        let has_marker = chunk.windows(shared.marker.len()).any(|window| window == shared.marker);
        shared.markers.fetch_add(u64::from(has_marker), Ordering::Relaxed);
        if to.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

enum Plan {
    Nothing,
    Alter(Alteration),
    Versions {
        is_from_opener: bool,
        version: u8,
    },
    /// Withholds the last bytes of the first chunk that begins after offset `after`, and all later bytes.
    Withhold {
        after: u64,
        bytes: usize,
    },
}

struct Alteration {
    offset: u64,
    kind: Kind,
}

enum Kind {
    Flip(u8),
    Insert(Vec<u8>),
    LeaveOut(usize),
    Repeat(usize),
}

impl Alteration {
    fn draw(random: &mut Random) -> Alteration {
        let offset = match random.below(4) {
            0 => random.below(HANDSHAKE_BYTES),
            _ => HANDSHAKE_BYTES + random.below(DEPTH_BYTES),
        };
        let length = 1 + random.below(LENGTH_MAX) as usize;
        let kind = match random.below(4) {
            0 => Kind::Flip(1 << random.below(8)),
            1 => Kind::Insert((0..length).map(|_| random.below(256) as u8).collect()),
            2 => Kind::LeaveOut(length),
            _ => Kind::Repeat(length),
        };
        Alteration { offset: offset.into(), kind }
    }
}

/// A random sequence for each connection (SplitMix64).
struct Random(u64);

impl Random {
    fn new(seed: u64, connection: u64) -> Random {
        Random((seed << 32) ^ connection)
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(bound)) as u32
    }
}

struct Direction {
    plan: Plan,
    /// Bytes received so far.
    received_bytes: u64,
    /// The last bytes received, for [`Kind::Repeat`].
    recent: Vec<u8>,
    /// Bytes that still have to be left out.
    left_out: usize,
    /// Whether all further bytes are withheld.
    withholds_rest: bool,
}

impl Direction {
    /// Alters a chunk by the plan. Returns whether this chunk was altered.
    fn alter(&mut self, chunk: &mut Vec<u8>) -> bool {
        let (begin, count) = (self.received_bytes, chunk.len());
        self.received_bytes += count as u64;
        if self.withholds_rest {
            chunk.clear();
            return false;
        }
        let skipped = self.left_out.min(count);
        self.left_out -= skipped;
        chunk.drain(..skipped);
        match std::mem::replace(&mut self.plan, Plan::Nothing) {
            Plan::Nothing => false,
            Plan::Versions { is_from_opener, version } if begin == 0 => {
                let versions = if is_from_opener {
                    HELLO_VERSIONS..HELLO_VERSIONS + 2
                } else {
                    WELCOME_VERSION..WELCOME_VERSION + 1
                };
                match chunk.get_mut(versions) {
                    Some(bytes) => bytes.fill(version),
                    None => return false,
                }
                true
            }
            Plan::Versions { .. } => false,
            Plan::Withhold { after, bytes } if begin > after && count > bytes => {
                chunk.truncate(count - bytes);
                self.withholds_rest = true;
                true
            }
            Plan::Alter(alteration) if alteration.offset < self.received_bytes => {
                let offset = usize::try_from(alteration.offset - begin).unwrap();
                self.recent.extend_from_slice(&chunk[..offset]);
                match alteration.kind {
                    Kind::Flip(mask) => chunk[offset] ^= mask,
                    Kind::Insert(bytes) => drop(chunk.splice(offset..offset, bytes)),
                    Kind::LeaveOut(bytes) => {
                        let removed = bytes.min(count - offset);
                        chunk.drain(offset..offset + removed);
                        self.left_out = bytes - removed;
                    }
                    Kind::Repeat(bytes) => {
                        let repeated = self.recent.split_off(self.recent.len().saturating_sub(bytes));
                        if repeated.is_empty() {
                            chunk[offset] ^= 1; // nothing to repeat before the first byte
                        }
                        chunk.splice(offset..offset, repeated);
                    }
                }
                true
            }
            plan => {
                self.recent.extend_from_slice(chunk);
                let excess = self.recent.len().saturating_sub(LENGTH_MAX as usize);
                self.recent.drain(..excess);
                self.plan = plan;
                false
            }
        }
    }
}
