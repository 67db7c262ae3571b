//! One run: what it owns on the machine, and how that goes away again, whichever way the run ends.

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
use crate::{LabError, namespace};

/// The file that the owner of a run keeps locked while it lives.
const OWNER: &str = "owner";
/// Names tried until one is found of which nothing is there.
const NAMES_TRIED: usize = 60;

/// A live run. Local places have one without namespaces and groups.
#[derive(Debug)]
pub(crate) struct Run {
    pub name: RunName,
    /// Holds what its processes print.
    pub directory: PathBuf,
    /// `None` for a run that only has a directory.
    pub layout: Option<Layout>,
    /// Held while something is added, so that removal never runs beside it.
    open: Mutex<bool>,
    _owner: File,
}

/// What [`remove`] found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub namespaces: usize,
    pub groups: usize,
    pub processes: usize,
    pub directory: bool,
}

/// The runs of this process, for signals and `exit`.
static LIVE: Mutex<Live> = Mutex::new(Live { runs: Vec::new(), ending: false });

struct Live {
    runs: Vec<Arc<Run>>,
    /// The process is about to end: a run that began now would be left behind.
    ending: bool,
}

impl Run {
    /// Makes the directory and group of a new run, and sees to it that they go away again.
    pub fn open(name: &str, layout: Option<Layout>) -> Result<Arc<Run>, LabError> {
        watch_for_the_end();
        let (name, directory) = fresh(name, layout.as_ref())?;
        let owner = lock_owner(&directory).inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let run = Arc::new(Run { name, directory, layout, open: Mutex::new(true), _owner: owner });
        {
            let mut live = lock(&LIVE);
            if live.ending {
                drop(fs::remove_dir_all(&run.directory));
                return Err(run.ended());
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

    /// Keeps the run from being removed while something is added to it.
    pub fn adding(&self) -> Result<MutexGuard<'_, bool>, LabError> {
        let open = lock(&self.open);
        if *open { Ok(open) } else { Err(self.ended()) }
    }

    fn ended(&self) -> LabError {
        LabError::BadOption(format!("the lab {} has ended", self.name))
    }

    fn create_groups(&self) -> Result<(), LabError> {
        let _adding = self.adding()?;
        self.layout.as_ref().map_or(Ok(()), |layout| layout.create_run(&self.name.to_string()))
    }

    /// Removes all that the run has. Later calls find nothing left to do.
    pub fn close(&self) -> Result<(), LabError> {
        let mut open = lock(&self.open);
        let closed = if std::mem::replace(&mut *open, false) {
            remove(&self.name.to_string(), self.layout.as_ref()).map(drop)
        } else {
            Ok(())
        };
        // Only now: `exit` must wait for a removal that another thread has begun.
        lock(&LIVE).runs.retain(|run| run.name != self.name);
        closed
    }
}

/// A name of which nothing is there, not even of a killed run whose process id has come round again; and its directory.
fn fresh(name: &str, layout: Option<&Layout>) -> Result<(RunName, PathBuf), LabError> {
    for _ in 0..NAMES_TRIED {
        let name = RunName::new(name)?;
        let groups = layout.map(Layout::top_groups).unwrap_or_default();
        let mut there =
            namespace::names().into_iter().chain(groups).filter_map(|other| RunName::parse(&other));
        if there.any(|other| other == name) {
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

/// Takes the lock that says a run's owner lives.
fn lock_owner(directory: &Path) -> Result<File, LabError> {
    let path = directory.join(OWNER);
    let take = || {
        let file = File::create(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    };
    take().map_err(LabError::io(format!("cannot lock {}", path.display())))
}

/// Where a run keeps its files.
pub(crate) fn directory_of(run: &str) -> PathBuf {
    std::env::temp_dir().join(run)
}

/// Whether a run's owner still lives. The lock says so even where its process id has been given to somebody else.
pub(crate) fn owned(run: &RunName) -> bool {
    match File::open(directory_of(&run.to_string()).join(OWNER)) {
        Ok(owner) => flock(&owner, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(_) => Path::new("/proc").join(run.pid.to_string()).exists(),
    }
}

/// Removes what a run has, in an order in which nothing new can appear: processes and groups, namespaces, files. Goes on
/// after a failure and returns the first.
pub(crate) fn remove(run: &str, layout: Option<&Layout>) -> Result<Removed, LabError> {
    let mut removed = Removed::default();
    let mut failure = None;
    if let Some(layout) = layout {
        match layout.remove_run(run) {
            Ok((processes, groups)) => (removed.processes, removed.groups) = (processes, groups),
            Err(e) => failure = Some(e),
        }
    }
    for name in namespace::names() {
        if name.strip_prefix(run).is_some_and(|rest| rest.starts_with('.')) {
            match namespace::remove(&name) {
                Ok(there) => removed.namespaces += usize::from(there),
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

/// A lock whose holder panicked still guards nothing but a list and a flag.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close_all() {
    let live = {
        let mut live = lock(&LIVE);
        live.ending = true;
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

/// How long the program has after a signal before the signal ends it.
static FINISHES_WITHIN: Mutex<Duration> = Mutex::new(Duration::ZERO);
/// The signal that has ended all runs; 0 before.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);
/// How often a second signal is looked for.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Lets SIGINT, SIGTERM and SIGHUP end all runs, now and later, but the process itself only after this time, or at a
/// second signal. Without it such a signal ends the process when its runs are removed.
pub fn finish_within(time: Duration) {
    *lock(&FINISHES_WITHIN) = time;
    watch_for_the_end();
}

/// The signal that has ended all runs of this process, if one has.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Removes live runs on `exit` and on the signals that end a process.
fn watch_for_the_end() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `at_exit` is a plain function without captures that stays valid for the life of the process, and
        // does not unwind.
        unsafe { libc::atexit(at_exit) };
        let ignored = ignored_signals();
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(wanted) else { return };
        let wait = move || {
            loop {
                let Some(signal) = signals.wait().next() else { continue };
                INTERRUPTED.store(signal, Ordering::Relaxed);
                close_all();
                // The program may state what it has and end by itself. A second signal ends it at once.
                let deadline = Instant::now() + *lock(&FINISHES_WITHIN);
                while Instant::now() < deadline && signals.pending().next().is_none() {
                    std::thread::sleep(SIGNAL_POLL);
                }
                let _ = emulate_default_handler(signal);
            }
        };
        // Without the thread a signal would be swallowed; `clean` is then what removes the run.
        if let Err(e) = std::thread::Builder::new().name("lab-signals".into()).spawn(wait) {
            eprintln!("lab: no thread for signals: {e}");
        }
    });
}

extern "C" fn at_exit() {
    // Unwinding out of a C callback would abort: a failure to clean up must not change how the process ends.
    let _ = std::panic::catch_unwind(close_all);
}

/// Signals this process was told to ignore, as under nohup: they stay ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
