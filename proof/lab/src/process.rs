//! Processes on a host or on loopback. A process ends when its handle is dropped.

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

const OUTPUT_BYTES_READ_MAX: u64 = 16 << 20;
const TAIL_BYTES: u64 = 2_000;
const OPEN_FILES_DEFAULT: u64 = 65_536;

/// Destination of a process's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Both outputs go to files in the run's directory: [`Process::stdout`] and [`Process::stderr`] read them.
    #[default]
    Files,
    /// Standard output goes to a pipe ([`Process::take_stdout`]), which blocks the process while it is full.
    /// Standard error goes to a file.
    Piped,
    /// Both outputs go to those of the laboratory's process.
    Inherit,
    /// Both outputs go to `/dev/null`.
    Null,
}

/// A program with its arguments, to start on a [`Place`](crate::Place) or [`Host`](crate::Host).
#[derive(Clone, Debug)]
pub struct Launch {
    name: String,
    argv: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    output: Output,
    has_piped_stdin: bool,
    open_files: u64,
}

impl Launch {
    /// A program: its path, or its name, which is looked up in PATH and the system's `sbin` directories.
    pub fn new(program: impl AsRef<OsStr>) -> Launch {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        Launch {
            name,
            argv: vec![program.to_owned()],
            environment: Vec::new(),
            output: Output::default(),
            has_piped_stdin: false,
            open_files: OPEN_FILES_DEFAULT,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Launch {
        self.argv.push(argument.as_ref().to_owned());
        self
    }

    /// Adds several arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Launch {
        self.argv.extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable. The process inherits all others.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Prepends a command, such as `spillway run --link :11411 --`.
    pub fn wrapper<S: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = S>) -> Launch {
        self.argv.splice(0..0, command.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Sets the name for errors and output files. Default: the program's name.
    pub fn name(mut self, name: impl Into<String>) -> Launch {
        self.name = name.into();
        self
    }

    /// Sets the destination of the output. Default: [`Output::Files`].
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// Makes standard input a pipe ([`Process::take_stdin`]) instead of `/dev/null`.
    pub fn piped_stdin(mut self) -> Launch {
        self.has_piped_stdin = true;
        self
    }

    /// Sets the soft limit of open descriptors, at most the laboratory's own hard limit. Default: 65,536.
    pub fn open_files(mut self, limit: u64) -> Launch {
        self.open_files = limit;
        self
    }
}

pub(crate) struct Confinement<'a> {
    pub namespace: Option<OwnedFd>,
    /// Open files of the cgroups to join: a process that writes "0" to such a file joins its cgroup.
    pub task_files: Vec<OwnedFd>,
    pub cores: Option<CpuSet>,
    /// The directory of output files.
    pub directory: &'a Path,
    pub host_name: String,
}

/// A running or ended process. Dropping the handle kills the process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    exit_status: Option<ExitStatus>,
    reaped: bool,
    stdout_file: Option<PathBuf>,
    stderr_file: Option<PathBuf>,
}

impl Process {
    pub(crate) fn start(launch: &Launch, confinement: Confinement<'_>) -> Result<Process, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{} on {}", launch.name, confinement.host_name);
        let (program, arguments) = launch
            .argv
            .split_first()
            .ok_or_else(|| LabError::BadOption("a launch needs the name of a program".into()))?;
        let program = crate::tools::program(program).ok_or_else(|| {
            LabError::BadOption(format!(
                "cannot start {name}: {} is not found: install the program, or correct its path (a name is looked up in \
                 PATH and the system's sbin directories)",
                program.display()
            ))
        })?;
        let mut command = Command::new(program);
        command.args(arguments).envs(launch.environment.iter().map(|(n, v)| (n, v))).process_group(0);
        command.stdin(if launch.has_piped_stdin { Stdio::piped() } else { Stdio::null() });

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| -> Result<(PathBuf, Stdio), LabError> {
            let stem = launch.name.replace('/', "_");
            let path = confinement.directory.join(format!("{number}-{stem}.{kind}"));
            let file =
                File::create(&path).map_err(LabError::io(format!("cannot make {}", path.display())))?;
            Ok((path, file.into()))
        };
        let (mut stdout_file, mut stderr_file) = (None, None);
        match launch.output {
            Output::Files => {
                let (path, stdio) = file("out")?;
                stdout_file = Some(path);
                command.stdout(stdio);
            }
            Output::Piped => drop(command.stdout(Stdio::piped())),
            Output::Inherit => drop(command.stdout(Stdio::inherit())),
            Output::Null => drop(command.stdout(Stdio::null())),
        }
        match launch.output {
            Output::Files | Output::Piped => {
                let (path, stdio) = file("err")?;
                stderr_file = Some(path);
                command.stderr(stdio);
            }
            Output::Inherit => drop(command.stderr(Stdio::inherit())),
            Output::Null => drop(command.stderr(Stdio::null())),
        }
        confine(&mut command, confinement, launch.open_files);
        let child = spawner::spawn(command).map_err(LabError::io(format!("cannot start {name}")))?;
        Ok(Process { name, child, exit_status: None, reaped: false, stdout_file, stderr_file })
    }

    /// The process's id. The kernel does not reuse it before [`Process::stop`], [`Process::kill`] or the drop.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process's name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The exit status, or `None` while the process runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.exit_status.is_none() {
            // NOWAIT leaves the process unreaped: its id stays taken, so that a signal can reach only its own group.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.exit_status =
                self.id().and_then(|id| waitid(WaitId::Pid(id), options).ok().flatten()).map(|status| {
                    let signal = status.terminating_signal().unwrap_or(0);
                    ExitStatus::from_raw(status.exit_status().map_or(signal, |code| (code & 0xff) << 8))
                });
        }
        self.exit_status
    }

    /// Waits for the process to end, at most for `timeout`. Returns `None` after that.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.exit_status() {
                return Some(status);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Sends the signal with this number, such as 15 for SIGTERM, to the process group.
    pub fn signal(&mut self, number: i32) -> Result<(), LabError> {
        let what = format!("cannot send signal {number} to {}", self.name);
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| LabError::BadOption(format!("{what}: no signal has this number")))?;
        if self.exit_status().is_some() {
            return Err(LabError::NotReady {
                what: format!("{what}: the process has ended"),
                output: self.last_output(),
            });
        }
        self.signal_group(signal).map_err(LabError::errno(what))
    }

    /// Sends SIGTERM to the process group, waits for the process for at most `grace`, kills the group, and returns the
    /// process's exit status.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.exit_status().is_none() {
            // Fails for a process that has just ended; `wait` then returns at once.
            let _ = self.signal_group(Signal::TERM);
            self.wait(grace);
        }
        self.kill();
        self.exit_status
    }

    /// Kills the process group and reaps the process.
    pub fn kill(&mut self) {
        if !std::mem::replace(&mut self.reaped, true) {
            let _ = self.signal_group(Signal::KILL);
            self.exit_status = self.child.wait().ok();
        }
    }

    /// The first 16 MiB of the process's standard output so far; an error unless the output is [`Output::Files`].
    pub fn stdout(&self) -> Result<String, LabError> {
        read_back(self.stdout_file.as_deref(), &self.name)
    }

    /// The first 16 MiB of the process's standard error so far; an error if standard error does not go to a file.
    pub fn stderr(&self) -> Result<String, LabError> {
        read_back(self.stderr_file.as_deref(), &self.name)
    }

    /// The pipe from the process's standard output, with [`Output::Piped`]; `None` from the second call on.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The pipe to the process's standard input, with [`Launch::piped_stdin`]; `None` from the second call on.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The last 2,000 bytes of standard output, then of standard error, for messages.
    pub fn last_output(&self) -> String {
        let ends = [&self.stdout_file, &self.stderr_file]
            .into_iter()
            .flatten()
            .map(|path| last_bytes_of(path).unwrap_or_default());
        ends.collect::<Vec<_>>().join("\n")
    }

    /// Sends a signal to the process group. Every process leads its own group: so signals also reach the
    /// children of a wrapper such as `spillway run`, but Ctrl-C in a terminal only the laboratory's process.
    fn signal_group(&self, signal: Signal) -> rustix::io::Result<()> {
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

/// Prepares the new process between fork and exec: parent death signal, network namespace, cgroups, cores,
/// and limit of open descriptors.
fn confine(command: &mut Command, confinement: Confinement<'_>, open_files: u64) {
    let Confinement { namespace, task_files, cores, .. } = confinement;
    let parent = i32::try_from(std::process::id()).ok().and_then(Pid::from_raw);
    let hard_limit = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(hard_limit.map_or(open_files, |hard| hard.min(open_files))),
        maximum: hard_limit,
    };
    let prepare = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != parent {
            // The parent ended before its death signal was set.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(namespace) = &namespace {
            namespace::join(namespace)?;
        }
        for task_file in &task_files {
            rustix::io::write(task_file, b"0")?;
        }
        if let Some(cores) = &cores {
            sched_setaffinity(None, cores)?;
        }
        rustix::process::setrlimit(Resource::Nofile, limit)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls, which rustix does without libc. It takes no
    // lock and allocates nothing, so it is sound in a child of a process with several threads.
    unsafe { command.pre_exec(prepare) };
}

fn read_back(path: Option<&Path>, name: &str) -> Result<String, LabError> {
    let path = path.ok_or_else(|| {
        LabError::BadOption(format!("the output of {name} is not in a file: start it with Output::Files"))
    })?;
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(OUTPUT_BYTES_READ_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(LabError::io(format!("cannot read {}", path.display())))
}

fn last_bytes_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = fs::metadata(path)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
