//! Somebody on the path of a link: a proxy that alters the bytes of each connection once, at a seeded place.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Bytes with which a link begins, in either direction, and a little more.
const BEGINNING_BYTES: u32 = 120;
/// The alteration of a connection is at most this far behind its beginning.
const DEPTH_BYTES: u32 = 6_000;
/// Bytes inserted, left out, or repeated, at most.
const LENGTH_MAX: u32 = 300;
/// Received at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// Offset of the lowest and of the highest version in *hello*, and of the version in *welcome*.
const HELLO_VERSIONS: usize = 8;
const WELCOME_VERSION: usize = 8;

/// What is done to each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddling {
    /// Nothing.
    Nothing,
    /// One byte is flipped, or some are inserted, left out or repeated, at a place in either direction.
    Anywhere,
    /// The versions that the ends say they speak become older ones.
    Versions,
    /// The end of a chunk of the opener's is withheld, once, and everything after that chunk.
    Tail,
}

impl Meddling {
    const ALL: [Meddling; 4] = [Meddling::Nothing, Meddling::Anywhere, Meddling::Versions, Meddling::Tail];
}

/// A proxy before a link port, until it is dropped.
pub struct Meddler {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    seed: u64,
    /// Bytes that pass in no encrypted link.
    marker: &'static [u8],
    meddling: AtomicU8,
    /// Connections of earlier generations end with the next bytes.
    generation: AtomicU64,
    is_over: AtomicBool,
    connections: AtomicU64,
    alterations: AtomicU64,
    markers: AtomicU64,
}

impl Meddler {
    /// A proxy before a link port. `marker` is looked for in what passes.
    pub fn before(target: SocketAddr, seed: u64, meddling: Meddling, marker: &'static [u8]) -> Meddler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            seed,
            marker,
            meddling: AtomicU8::new(meddling as u8),
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
                carry(&accepting, opener, server);
            }
        });
        Meddler { address, shared }
    }

    /// What is done to connections that are opened from now on. Those that are open end with the next bytes.
    pub fn meddle(&self, meddling: Meddling) {
        self.shared.meddling.store(meddling as u8, Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Connections that were altered so far.
    pub fn alterations(&self) -> u64 {
        self.shared.alterations.load(Ordering::Relaxed)
    }

    /// Chunks in which the marker was seen.
    pub fn markers(&self) -> u64 {
        self.shared.markers.load(Ordering::Relaxed)
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn carry(shared: &Arc<Shared>, opener: TcpStream, server: TcpStream) {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    let generation = shared.generation.load(Ordering::Relaxed);
    let meddling = Meddling::ALL[usize::from(shared.meddling.load(Ordering::Relaxed))];
    let mut random = Random::new(shared.seed, number);
    let altered = random.below(2) == 0;
    let both = random.below(3) == 0;
    for (from_opener, from, to) in [(true, &opener, &server), (false, &server, &opener)] {
        let plan = match meddling {
            Meddling::Nothing => Plan::Nothing,
            Meddling::Anywhere if from_opener == altered => Plan::Alter(Alteration::draw(&mut random)),
            Meddling::Anywhere => Plan::Nothing,
            Meddling::Versions if both || from_opener == altered => {
                Plan::Versions { from_opener, older: 1 + random.below(3) as u8 }
            }
            Meddling::Versions => Plan::Nothing,
            Meddling::Tail if from_opener => {
                Plan::Withhold { after: u64::from(BEGINNING_BYTES), bytes: 1 + random.below(12) as usize }
            }
            Meddling::Tail => Plan::Nothing,
        };
        let (shared, from, to) = (Arc::clone(shared), from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || pass(&shared, generation, from, to, plan));
    }
}

/// Passes one direction on until it ends; then both end.
fn pass(shared: &Shared, generation: u64, mut from: TcpStream, mut to: TcpStream, plan: Plan) {
    let mut way = Way { plan, passed: 0, recent: Vec::new(), left_out: 0, is_shut: false };
    let mut received = vec![0; CHUNK_BYTES];
    let _ = to.set_nodelay(true);
    while let Ok(count @ 1..) = from.read(&mut received) {
        if shared.generation.load(Ordering::Relaxed) != generation {
            break;
        }
        let mut chunk = received[..count].to_vec();
        if way.alter(&mut chunk) {
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
        from_opener: bool,
        older: u8,
    },
    /// The last bytes of the first chunk that begins behind `after`, and all that would follow.
    Withhold {
        after: u64,
        bytes: usize,
    },
}

struct Alteration {
    at: u64,
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
        let at = match random.below(4) {
            0 => random.below(BEGINNING_BYTES),
            _ => BEGINNING_BYTES + random.below(DEPTH_BYTES),
        };
        let length = 1 + random.below(LENGTH_MAX) as usize;
        let kind = match random.below(4) {
            0 => Kind::Flip(1 << random.below(8)),
            1 => Kind::Insert((0..length).map(|_| random.below(256) as u8).collect()),
            2 => Kind::LeaveOut(length),
            _ => Kind::Repeat(length),
        };
        Alteration { at: at.into(), kind }
    }
}

/// A sequence of numbers of its own for each connection (SplitMix64).
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

/// One direction of a connection.
struct Way {
    plan: Plan,
    /// Bytes that came before this chunk.
    passed: u64,
    /// The last of them, for repeating.
    recent: Vec<u8>,
    /// Bytes that are yet to be left out.
    left_out: usize,
    /// Nothing more passes.
    is_shut: bool,
}

impl Way {
    /// Whether the connection was altered with this.
    fn alter(&mut self, chunk: &mut Vec<u8>) -> bool {
        let (begin, count) = (self.passed, chunk.len());
        self.passed += count as u64;
        if self.is_shut {
            chunk.clear();
            return false;
        }
        let more = self.left_out.min(count);
        self.left_out -= more;
        chunk.drain(..more);
        match std::mem::replace(&mut self.plan, Plan::Nothing) {
            Plan::Nothing => false,
            Plan::Versions { from_opener, older } if begin == 0 => {
                let versions = if from_opener {
                    HELLO_VERSIONS..HELLO_VERSIONS + 2
                } else {
                    WELCOME_VERSION..WELCOME_VERSION + 1
                };
                match chunk.get_mut(versions) {
                    Some(bytes) => bytes.fill(older),
                    None => return false,
                }
                true
            }
            Plan::Versions { .. } => false,
            Plan::Withhold { after, bytes } if begin > after && count > bytes => {
                chunk.truncate(count - bytes);
                self.is_shut = true;
                true
            }
            Plan::Alter(alteration) if alteration.at < self.passed => {
                let at = usize::try_from(alteration.at - begin).unwrap();
                self.recent.extend_from_slice(&chunk[..at]);
                match alteration.kind {
                    Kind::Flip(mask) => chunk[at] ^= mask,
                    Kind::Insert(bytes) => drop(chunk.splice(at..at, bytes)),
                    Kind::LeaveOut(bytes) => {
                        let now = bytes.min(count - at);
                        chunk.drain(at..at + now);
                        self.left_out = bytes - now;
                    }
                    Kind::Repeat(bytes) => {
                        let again = self.recent.split_off(self.recent.len().saturating_sub(bytes));
                        if again.is_empty() {
                            chunk[at] ^= 1; // nothing to repeat before the first byte
                        }
                        chunk.splice(at..at, again);
                    }
                }
                true
            }
            plan => {
                self.recent.extend_from_slice(chunk);
                let old = self.recent.len().saturating_sub(LENGTH_MAX as usize);
                self.recent.drain(..old);
                self.plan = plan;
                false
            }
        }
    }
}
