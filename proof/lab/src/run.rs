//! A run with its directory, groups and namespaces, and their removal however the process ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::cgroup::Layout;
use crate::names::RunName;
use crate::{LabError, namespace, pins};

const OWNER_LOCK_FILE: &str = "owner";
const NAME_ATTEMPTS_MAX: usize = 60;

/// A live run. A run on loopback has no namespaces and groups.
#[derive(Debug)]
pub(crate) struct Run {
    pub name: RunName,
    /// The directory for the output of the run's processes.
    pub directory: PathBuf,
    pub layout: Option<Layout>,
    /// Whether groups and hosts can be added. Locked during additions, so that the run is not removed.
    is_open: Mutex<bool>,
    _owner: File,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub namespaces: usize,
    pub groups: usize,
    pub processes: usize,
    pub pins: usize,
    pub directory: bool,
}

static LIVE: Mutex<Live> = Mutex::new(Live { runs: Vec::new(), is_ending: false });

struct Live {
    runs: Vec<Arc<Run>>,
    /// The process is about to end. `Run::open` refuses new runs, because they would not be removed.
    is_ending: bool,
}

impl Run {
    /// Makes the directory and groups of a new run, and registers the run for removal at exit.
    pub fn open(name: &str, layout: Option<Layout>) -> Result<Arc<Run>, LabError> {
        install_exit_handlers();
        let (name, directory) = make_unused_directory(name, layout.as_ref())?;
        let owner = lock_owner(&directory).inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let run = Arc::new(Run { name, directory, layout, is_open: Mutex::new(true), _owner: owner });
        {
            let mut live = lock(&LIVE);
            if live.is_ending {
                drop(fs::remove_dir_all(&run.directory));
                return Err(run.ended_error());
            }
            live.runs.push(Arc::clone(&run));
        }
        match run.create_groups() {
            Ok(()) => Ok(run),
            Err(e) => {
                let _ = run.close();
                Err(e)
            }
        }
    }

    /// Prevents the run's removal while the returned guard exists. Returns an error if the run has ended.
    pub fn prevent_removal(&self) -> Result<MutexGuard<'_, bool>, LabError> {
        let is_open = lock(&self.is_open);
        if *is_open { Ok(is_open) } else { Err(self.ended_error()) }
    }

    fn ended_error(&self) -> LabError {
        LabError::BadOption(format!("the lab {} has ended", self.name))
    }

    fn create_groups(&self) -> Result<(), LabError> {
        let _no_removal = self.prevent_removal()?;
        self.layout.as_ref().map_or(Ok(()), |layout| layout.create_run(&self.name.to_string()))
    }

    /// Removes the run's processes, groups, namespaces and files. Later calls do nothing.
    pub fn close(&self) -> Result<(), LabError> {
        let mut is_open = lock(&self.is_open);
        let outcome = if std::mem::replace(&mut *is_open, false) {
            remove(&self.name.to_string(), self.layout.as_ref()).map(drop)
        } else {
            Ok(())
        };
        // After the removal, so that `exit` waits for a removal that another thread has begun.
        lock(&LIVE).runs.retain(|run| run.name != self.name);
        outcome
    }
}

/// Finds a name that no run has, including killed runs with the same process id, and makes its directory.
fn make_unused_directory(name: &str, layout: Option<&Layout>) -> Result<(RunName, PathBuf), LabError> {
    for _ in 0..NAME_ATTEMPTS_MAX {
        let name = RunName::new(name)?;
        let groups = layout.map(Layout::top_groups).unwrap_or_default();
        let mut existing =
            namespace::names().into_iter().chain(groups).filter_map(|other| RunName::parse(&other));
        if existing.any(|other| other == name) {
            continue;
        }
        let directory = directory_of(&name.to_string());
        match fs::create_dir(&directory) {
            Ok(()) => return Ok((name, directory)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(LabError::io(format!("cannot make {}", directory.display()))(e)),
        }
    }
    Err(LabError::BadOption("killed runs have left too much behind: run `spillway-lab clean`".into()))
}

fn lock_owner(directory: &Path) -> Result<File, LabError> {
    let path = directory.join(OWNER_LOCK_FILE);
    let create_and_lock = || {
        let file = File::create(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    };
    create_and_lock().map_err(LabError::io(format!("cannot lock {}", path.display())))
}

pub(crate) fn directory_of(run: &str) -> PathBuf {
    std::env::temp_dir().join(run)
}

/// Whether a run's owner is alive. Checks the lock, because another process may have the owner's id by now.
pub(crate) fn is_owner_alive(run: &RunName) -> bool {
    match File::open(directory_of(&run.to_string()).join(OWNER_LOCK_FILE)) {
        Ok(owner) => flock(&owner, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(_) => Path::new("/proc").join(run.pid.to_string()).exists(),
    }
}

/// Removes a run's processes and groups, then its pinned programs, its namespaces and its files, because processes could
/// create new ones. Continues after a failure and returns the first one.
pub(crate) fn remove(run: &str, layout: Option<&Layout>) -> Result<Removed, LabError> {
    let mut removed = Removed::default();
    let mut failure = None;
    if let Some(layout) = layout {
        match layout.remove_run(run) {
            Ok((processes, groups)) => (removed.processes, removed.groups) = (processes, groups),
            Err(e) => failure = Some(e),
        }
    }
    match pins::remove(run) {
        Ok(pins) => removed.pins = pins,
        Err(e) => failure = failure.or(Some(e)),
    }
    for name in namespace::names() {
        if name.strip_prefix(run).is_some_and(|rest| rest.starts_with('.')) {
            match namespace::remove(&name) {
                Ok(existed) => removed.namespaces += usize::from(existed),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
    }
    let directory = directory_of(run);
    match fs::remove_dir_all(&directory) {
        Ok(()) => removed.directory = true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => {
            failure = failure.or(Some(LabError::io(format!("cannot remove {}", directory.display()))(e)));
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// Ignores poisoning: after a panic, the values that the locks of this file guard are valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close_all() {
    let live = {
        let mut live = lock(&LIVE);
        live.is_ending = true;
        live.runs.clone()
    };
    for run in live {
        if run.name.pid == std::process::id()
            && let Err(e) = run.close()
        {
            eprintln!("lab: {e}");
        }
    }
}

/// Time between the first signal and the end of the process.
static EXIT_GRACE: Mutex<Duration> = Mutex::new(Duration::ZERO);
/// Number of the signal that ended all runs; 0 before.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);
const SECOND_SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Delays the end of the process after SIGINT, SIGTERM or SIGHUP until this time has passed or a second
/// signal arrives. The first signal removes all runs at once. Default: zero.
pub fn set_exit_grace(time: Duration) {
    *lock(&EXIT_GRACE) = time;
    install_exit_handlers();
}

/// The signal that ended all runs of this process, or `None`.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Makes `exit`, SIGINT, SIGTERM and SIGHUP remove all live runs.
fn install_exit_handlers() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: `at_exit` is a function without captures, valid until the process ends, and does not unwind.
        unsafe { libc::atexit(at_exit) };
        let ignored = ignored_signals();
        let handled = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(handled) else { return };
        let wait = move || {
            loop {
                let Some(signal) = signals.wait().next() else { continue };
                INTERRUPTED.store(signal, Ordering::Relaxed);
                close_all();
                // The program may print its results and exit before the deadline. A second signal ends it at once.
                let deadline = Instant::now() + *lock(&EXIT_GRACE);
                while Instant::now() < deadline && signals.pending().next().is_none() {
                    std::thread::sleep(SECOND_SIGNAL_POLL);
                }
                let _ = emulate_default_handler(signal);
            }
        };
        // Without this thread, signals have no effect: `spillway-lab clean` must remove the runs.
        if let Err(e) = std::thread::Builder::new().name("lab-signals".into()).spawn(wait) {
            eprintln!("lab: cannot start the signal thread, so signals are ignored: {e}");
        }
    });
}

extern "C" fn at_exit() {
    // A panic that unwinds out of a C callback would abort the process and change its exit status.
    let _ = std::panic::catch_unwind(close_all);
}

/// Bit mask of the signals that this process ignores, for example under nohup. They must stay ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
