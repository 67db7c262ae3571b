//! Processes of the lab: started in a host or locally, ended with it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getppid, kill_process_group, waitid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{LabError, namespace, spawner};

/// Most that is read back of what a process printed.
const PRINTED_BYTES_MAX: u64 = 16 << 20;
/// Shown of a failed process's output in an error.
const TAIL_BYTES: u64 = 2_000;
/// Descriptors a process may have, where the machine's hard limit allows it.
const OPEN_FILES: u64 = 65_536;

/// Where a process's output goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// To files of the run, read back with [`Process::stdout`] and [`Process::stderr`].
    #[default]
    Files,
    /// Standard output to a pipe ([`Process::take_stdout`]), errors to a file. The reader must keep up.
    Piped,
    /// To where this process's output goes.
    Inherit,
    /// Nowhere.
    Null,
}

/// A program with its arguments, to be started in a [`Place`](crate::Place) or [`Host`](crate::Host).
#[derive(Clone, Debug)]
pub struct Launch {
    name: String,
    words: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    output: Output,
    stdin: bool,
    open_files: u64,
}

impl Launch {
    /// A program, by path or looked up in PATH and the system's own directories.
    pub fn new(program: impl AsRef<OsStr>) -> Launch {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        Launch {
            name,
            words: vec![program.to_owned()],
            environment: Vec::new(),
            output: Output::default(),
            stdin: false,
            open_files: OPEN_FILES,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Launch {
        self.words.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Launch {
        self.words.extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the environment; the rest is inherited.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Puts a command in front, such as `spillway run --link :11411 --`.
    pub fn wrapper<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Launch {
        self.words.splice(0..0, words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Names the process in errors and in the files of its output; by default the program's name.
    pub fn name(mut self, name: impl Into<String>) -> Launch {
        self.name = name.into();
        self
    }

    /// Where its output goes; by default to files.
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// Gives the process a pipe as its input ([`Process::take_stdin`]) instead of nothing.
    pub fn piped_stdin(mut self) -> Launch {
        self.stdin = true;
        self
    }

    /// The soft limit of open descriptors (65,536 by default), cut to the hard limit that this process has.
    pub fn open_files(mut self, limit: u64) -> Launch {
        self.open_files = limit;
        self
    }
}

/// What a new process joins before it begins.
pub(crate) struct Confinement<'a> {
    pub namespace: Option<OwnedFd>,
    pub entrances: Vec<OwnedFd>,
    pub cores: Option<CpuSet>,
    /// Where its output files go.
    pub directory: &'a Path,
    /// Which host, for errors.
    pub place: String,
}

/// A running or ended process. Dropping it kills it, with its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    reaped: bool,
    out: Option<PathBuf>,
    err: Option<PathBuf>,
}

impl Process {
    pub(crate) fn start(launch: &Launch, confinement: Confinement<'_>) -> Result<Process, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{} on {}", launch.name, confinement.place);
        let (program, arguments) = launch
            .words
            .split_first()
            .ok_or_else(|| LabError::BadOption("there is nothing to start".into()))?;
        let program = crate::tools::program(program).ok_or_else(|| {
            LabError::BadOption(format!("cannot start {name}: there is no program {}", program.display()))
        })?;
        let mut command = Command::new(program);
        command.args(arguments).envs(launch.environment.iter().map(|(n, v)| (n, v))).process_group(0);
        command.stdin(if launch.stdin { Stdio::piped() } else { Stdio::null() });

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| -> Result<(PathBuf, Stdio), LabError> {
            let stem = launch.name.replace('/', "_");
            let path = confinement.directory.join(format!("{number}-{stem}.{kind}"));
            let file =
                File::create(&path).map_err(LabError::io(format!("cannot make {}", path.display())))?;
            Ok((path, file.into()))
        };
        let (mut out, mut err) = (None, None);
        match launch.output {
            Output::Files => {
                let (path, stdio) = file("out")?;
                out = Some(path);
                command.stdout(stdio);
            }
            Output::Piped => drop(command.stdout(Stdio::piped())),
            Output::Inherit => drop(command.stdout(Stdio::inherit())),
            Output::Null => drop(command.stdout(Stdio::null())),
        }
        match launch.output {
            Output::Files | Output::Piped => {
                let (path, stdio) = file("err")?;
                err = Some(path);
                command.stderr(stdio);
            }
            Output::Inherit => drop(command.stderr(Stdio::inherit())),
            Output::Null => drop(command.stderr(Stdio::null())),
        }
        confine(&mut command, confinement, launch.open_files);
        let child = spawner::spawn(command).map_err(LabError::io(format!("cannot start {name}")))?;
        Ok(Process { name, child, ended: None, reaped: false, out, err })
    }

    /// The process's id, which nobody else gets before [`Process::stop`], [`Process::kill`] or the drop.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the process is called in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its exit status, if it has ended.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            // Only looked at, not reaped: as long as the id is taken, signals to its group reach what it left running, and
            // nobody else.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.ended =
                self.id().and_then(|id| waitid(WaitId::Pid(id), look).ok().flatten()).map(|status| {
                    let signal = status.terminating_signal().unwrap_or(0);
                    ExitStatus::from_raw(status.exit_status().map_or(signal, |code| (code & 0xff) << 8))
                });
        }
        self.ended
    }

    /// Waits for its end, at most for `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.exit() {
                return Some(status);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Sends a signal by its number (such as 15 for SIGTERM) to the process and what it started in its group.
    pub fn signal(&mut self, number: i32) -> Result<(), LabError> {
        let what = format!("cannot send signal {number} to {}", self.name);
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| LabError::BadOption(format!("{what}: there is no such signal")))?;
        if self.exit().is_some() {
            return Err(LabError::NotReady { what: format!("{what}: it has ended"), output: self.tail() });
        }
        self.to_group(signal).map_err(LabError::errno(what))
    }

    /// Asks it to end (SIGTERM), kills it when it has not after `grace`, and returns its status. Nothing of its group is
    /// left then.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.exit().is_none() {
            // Should it end just now, the wait tells.
            let _ = self.to_group(Signal::TERM);
            self.wait(grace);
        }
        self.kill();
        self.ended
    }

    /// Kills it and its group, and waits until it is gone.
    pub fn kill(&mut self) {
        if !std::mem::replace(&mut self.reaped, true) {
            let _ = self.to_group(Signal::KILL);
            self.ended = self.child.wait().ok();
        }
    }

    /// What it has written to its standard output so far ([`Output::Files`] only), 16 MiB at most.
    pub fn stdout(&self) -> Result<String, LabError> {
        read_back(self.out.as_deref(), &self.name)
    }

    /// What it has written to its standard error so far, 16 MiB at most.
    pub fn stderr(&self) -> Result<String, LabError> {
        read_back(self.err.as_deref(), &self.name)
    }

    /// The pipe from its standard output, once, with [`Output::Piped`].
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The pipe to its standard input, once, with [`Launch::piped_stdin`].
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The end of what it printed, errors last: for messages.
    pub fn tail(&self) -> String {
        let ends = [&self.out, &self.err].into_iter().flatten().map(|path| end_of(path).unwrap_or_default());
        ends.collect::<Vec<_>>().join("\n")
    }

    /// Every process of the lab leads a group of its own, so that wrappers and Ctrl-C behave.
    fn to_group(&self, signal: Signal) -> rustix::io::Result<()> {
        self.id().map_or(Err(rustix::io::Errno::SRCH), |id| kill_process_group(id, signal))
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets a command join namespace, groups and cores in the new process, before its program begins.
fn confine(command: &mut Command, confinement: Confinement<'_>, open_files: u64) {
    let Confinement { namespace, entrances, cores, .. } = confinement;
    let parent = i32::try_from(std::process::id()).ok().and_then(Pid::from_raw);
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let files = Rlimit { current: Some(hard.map_or(open_files, |hard| hard.min(open_files))), maximum: hard };
    let prepare = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != parent {
            // The parent died before the line above took effect.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(namespace) = &namespace {
            namespace::join(namespace)?;
        }
        for entrance in &entrances {
            rustix::io::write(entrance, b"0")?;
        }
        if let Some(cores) = &cores {
            sched_setaffinity(None, cores)?;
        }
        rustix::process::setrlimit(Resource::Nofile, files)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only (rustix calls the kernel directly); it takes no
    // lock and allocates nothing, so it is sound in a child of a process with several threads.
    unsafe { command.pre_exec(prepare) };
}

fn read_back(path: Option<&Path>, name: &str) -> Result<String, LabError> {
    let path =
        path.ok_or_else(|| LabError::BadOption(format!("the output of {name} does not go to a file")))?;
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(PRINTED_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(LabError::io(format!("cannot read {}", path.display())))
}

fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = fs::metadata(path)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
