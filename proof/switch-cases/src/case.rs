//! Cases: steps with their expected results.

mod parse;

pub use parse::Bases;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{CaseFileError, Position};
use crate::setup::Setup;
use crate::switch::Verdict;

/// Time of a case's time 0, in nanoseconds. Not 0, so that differences to earlier times do not underflow unnoticed.
pub const START_NS: u64 = 5_000_000_000_000;

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name in the file.
    pub name: String,
    /// Configuration of the switch at first.
    pub setup: Setup,
    /// Frames and checks, those of the case that this one continues first.
    pub steps: Vec<Step>,
}

/// One step of a case.
#[derive(Clone, Debug)]
pub struct Step {
    /// Position of the step in its file.
    pub position: Position,
    /// Time in nanoseconds.
    pub now_ns: u64,
    /// What the step does.
    pub action: Action,
}

/// A frame, a change of the configuration, or a check.
#[derive(Clone, Debug)]
pub enum Action {
    /// A frame arrives.
    Frame(Arrival),
    /// The configuration changes.
    Reload(Box<Setup>),
    /// The flows are checked.
    Flow(FlowCheck),
    /// The flow must be absent.
    NoFlow(std::net::SocketAddr, std::net::SocketAddr),
    /// Number of flows in the table.
    Flows(usize),
    /// An owner is checked.
    Owner(OwnerCheck),
}

/// A frame with its expected outcome.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Port at which the frame arrives, or [`EGRESS`](crate::setup::EGRESS).
    pub ingress: u8,
    /// The frame.
    pub frame: Vec<u8>,
    /// The expected verdict on the frame.
    pub verdict: Verdict,
    /// Ports to which the frame goes, in order.
    pub ports: Vec<u8>,
    /// The frame as it leaves or passes; empty if it is dropped.
    pub frame_out: Vec<u8>,
    /// Kind and status of an answer.
    pub answer: Option<(u8, u8)>,
}

/// The site that a check expects: address, port, MAC.
pub type SiteCheck = (std::net::SocketAddr, crate::mac::Mac);

/// The expected fields of an entry. Fields that are not stated are not compared, but target, claim, FIN flags and reset
/// must be absent unless they are stated.
#[derive(Clone, Debug)]
pub struct FlowCheck {
    /// Address and port of the client.
    pub client: std::net::SocketAddr,
    /// Address and port of the service.
    pub service: std::net::SocketAddr,
    /// A number of [`STATES`](crate::message::STATES).
    pub state: u8,
    /// Generation.
    pub generation: u64,
    /// Owner.
    pub owner: SiteCheck,
    /// Target.
    pub target: Option<SiteCheck>,
    /// Original owner.
    pub original: Option<SiteCheck>,
    /// Deadline of the move.
    pub deadline_ns: Option<u64>,
    /// Time of the last packet.
    pub last_packet_ns: Option<u64>,
    /// The generation that the last *prepare* named.
    pub repeat_generation: Option<u64>,
    /// End of the client's last segment with FIN, which the owner has not acknowledged.
    pub claim: Option<u32>,
    /// Whether the client has sent a FIN that the owner has acknowledged.
    pub client_fin: bool,
    /// Whether the owner has sent FIN.
    pub owner_fin: bool,
    /// End of the owner's last segment with FIN, which the client has not acknowledged.
    pub owner_claim: Option<u32>,
    /// Time of the owner's first RST.
    pub reset_ns: Option<u64>,
}

/// The expected fields of an owner. Fields that are not stated are not compared.
#[derive(Clone, Debug)]
pub struct OwnerCheck {
    /// Server's id.
    pub server: u8,
    /// Term.
    pub term: u64,
    /// Load.
    pub load: Option<u32>,
    /// Free places.
    pub free: Option<u32>,
    /// Weight.
    pub weight: Option<u16>,
    /// Service's number.
    pub service: Option<u16>,
    /// Time of the last heartbeat.
    pub last_heartbeat_ns: Option<u64>,
}

/// A file of cases.
#[derive(Clone, Debug)]
pub struct CaseFile {
    /// Its path.
    pub path: PathBuf,
    /// Its cases.
    pub cases: Vec<Case>,
}

/// The folder of the cases in this repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/rules/cases")
}

/// The folder of the cases of host mode, with a setup of its own.
pub fn host_folder() -> PathBuf {
    folder().join("host")
}

/// Reads the common setup of a folder of cases.
///
/// # Errors
/// The file cannot be read, or its text is wrong.
pub fn read_setup(folder: &Path) -> Result<Setup, CaseFileError> {
    let path = folder.join("setup.txt");
    let text = fs::read_to_string(&path).map_err(|error| CaseFileError::Read(path.clone(), error))?;
    Setup::parse(&text).map_err(|error| CaseFileError::Text(path, error))
}

/// Reads all files of cases, of both modes.
///
/// # Errors
/// As [`read_folder`].
pub fn read_all() -> Result<Vec<CaseFile>, CaseFileError> {
    let mut files = read_folder(&folder())?;
    files.extend(read_folder(&host_folder())?);
    Ok(files)
}

/// Reads all files of cases of a folder, in the order of their names. Cases of all files may continue those of
/// `common.txt`.
///
/// # Errors
/// A file cannot be read, or its text is wrong.
pub fn read_folder(folder: &Path) -> Result<Vec<CaseFile>, CaseFileError> {
    let failed = |error| CaseFileError::Read(folder.into(), error);
    let setup = read_setup(folder)?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "txt") && !path.ends_with("setup.txt") {
            paths.push(path);
        }
    }
    paths.sort_by_key(|path| (!path.ends_with("common.txt"), path.clone()));
    let mut common = Bases::default();
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| CaseFileError::Read(path.clone(), error))?;
        let is_common = path.ends_with("common.txt");
        let (cases, bases) = Case::parse_all(&setup, &common, &text)
            .map_err(|error| CaseFileError::Text(path.clone(), error))?;
        if is_common {
            common = bases;
        }
        files.push(CaseFile { path, cases });
    }
    Ok(files)
}
