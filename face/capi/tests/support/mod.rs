//! Compiles the C examples against an installed library, and runs them.
#![allow(dead_code)] // each test program uses a part of it

pub mod helper;
pub mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use spillway_keys::write_new_key_file;

use self::process::Process;

/// How the C code is compiled, linked and run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// With the shared library, and the flags of pkg-config.
    Shared,
    /// With the static library.
    Static,
    /// With the shared library; C code under AddressSanitizer with its leak check, and UndefinedBehaviorSanitizer.
    Sanitized,
    /// Compiled as [`Flavour::Shared`], run by valgrind with the full leak check.
    Valgrind,
}

/// Valgrind's option that sets its exit status after an error.
const ERROR_EXIT_CODE: &str = "--error-exitcode=99";

/// A directory with the installed library, keys and compiled programs; removed when dropped.
pub struct Workbench {
    directory: PathBuf,
    compiled: Mutex<Vec<(String, Flavour)>>,
}

impl Workbench {
    /// The workbench of this test program: concurrent tests share it.
    pub fn get() -> Arc<Workbench> {
        static SHARED: Mutex<Weak<Workbench>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Workbench::new());
            *shared = Arc::downgrade(&new);
            new
        })
    }

    fn new() -> Workbench {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("spillway-capi-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let bench = Workbench { directory, compiled: Mutex::default() };
        // The libraries and the tests are built in one directory: target/PROFILE/deps.
        let tests = std::env::current_exe().unwrap();
        let mut install = Command::new(crate_directory().join("../../tools/install-capi"));
        install.arg("--from").arg(tests.parent().unwrap()).arg("--prefix").arg(bench.prefix());
        succeed(&mut install);
        for name in ["helper.key", "client.key"] {
            write_new_key_file(bench.directory.join(name)).unwrap();
        }
        bench
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn prefix(&self) -> PathBuf {
        self.directory.join("usr")
    }

    pub fn library(&self) -> PathBuf {
        self.prefix().join("lib/libspillway.so")
    }

    pub fn key(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    pub fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.prefix().join("lib/pkgconfig")).args(arguments).arg("spillway");
        succeed(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Writes the source of a test's own program.
    pub fn write_program(&self, name: &str, text: &str) {
        std::fs::write(self.directory.join(name).with_extension("c"), text).unwrap();
    }

    /// Path of a program's source: an example, a file of `tests/c`, or a file of [`write_program`](Self::write_program).
    fn source(&self, name: &str) -> PathBuf {
        let folders =
            [crate_directory().join("examples"), crate_directory().join("tests/c"), self.directory.clone()];
        let sources = folders.map(|folder| folder.join(name).with_extension("c"));
        sources.into_iter().find(|source| source.exists()).unwrap()
    }

    /// Compiles a program, unless it is compiled already, and returns its path.
    fn compile(&self, name: &str, flavour: Flavour) -> PathBuf {
        let flavour = if flavour == Flavour::Valgrind { Flavour::Shared } else { flavour };
        let program = self.directory.join(format!("{name}-{flavour:?}"));
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.contains(&(name.to_owned(), flavour)) {
            return program;
        }
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-pthread"])
            .arg(self.source(name));
        gcc.args(self.pkg_config(&["--cflags"])).arg("-o").arg(&program);
        match flavour {
            Flavour::Static => {
                let static_archive =
                    |flag: String| if flag == "-lspillway" { "-l:libspillway.a".to_owned() } else { flag };
                gcc.arg("-O2").args(self.pkg_config(&["--static", "--libs"]).into_iter().map(static_archive));
            }
            Flavour::Sanitized => {
                gcc.args(["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
                gcc.args(self.pkg_config(&["--libs"]));
            }
            Flavour::Shared | Flavour::Valgrind => {
                gcc.arg("-O2").args(self.pkg_config(&["--libs"]));
            }
        }
        succeed(&mut gcc);
        compiled.push((name.to_owned(), flavour));
        program
    }

    /// A command that runs a program, for valgrind's flavour under valgrind.
    pub fn command(&self, name: &str, flavour: Flavour) -> Command {
        let program = self.compile(name, flavour);
        let mut command = match flavour {
            Flavour::Valgrind => {
                let mut valgrind = Command::new("valgrind");
                valgrind.args([
                    "-q",
                    ERROR_EXIT_CODE,
                    "--leak-check=full",
                    "--errors-for-leak-kinds=definite,indirect,possible",
                ]);
                let suppressions = self.prefix().join("share/spillway/valgrind.supp");
                valgrind.arg(format!("--suppressions={}", suppressions.display())).arg(program);
                valgrind
            }
            _ => Command::new(program),
        };
        command.env("LD_LIBRARY_PATH", self.prefix().join("lib"));
        command.env("ASAN_OPTIONS", "detect_leaks=1").env("UBSAN_OPTIONS", "print_stacktrace=1");
        command
    }

    /// Starts the echo server on free ports.
    pub fn echo_server(&self, flavour: Flavour) -> Echo {
        let (helper, client) = (self.key("helper.key"), self.key("client.key"));
        self.echo_server_with(flavour, &["--key", &helper, "--client-key", &client])
    }

    pub fn echo_server_with(&self, flavour: Flavour, keys: &[&str]) -> Echo {
        let mut command = self.command("echo_server", flavour);
        command.args(["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"]).args(keys);
        let mut process = Process::start(command);
        let line = process.line_with("listening on ");
        let (plain, links) = line.trim_start_matches("listening on ").split_once(", links on ").unwrap();
        Echo { plain: plain.to_owned(), links: links.to_owned(), process }
    }

    /// Starts the client, for a server and helpers.
    pub fn client(&self, flavour: Flavour, server: &str, helpers: &str, count: &str) -> Process {
        self.client_with(flavour, server, helpers, count, &[])
    }

    pub fn client_with(
        &self,
        flavour: Flavour,
        server: &str,
        helpers: &str,
        count: &str,
        extra: &[&str],
    ) -> Process {
        let mut command = self.command("client", flavour);
        command.args(["--server", server, "--helpers", helpers, "--key", &self.key("client.key")]);
        if !count.is_empty() {
            command.args(["--count", count]);
        }
        command.args(extra);
        Process::start(command)
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub struct Echo {
    pub plain: String,
    pub links: String,
    process: Process,
}

impl Echo {
    /// Ends the server by SIGTERM; it must exit with status 0.
    pub fn stop(self) {
        self.process.terminate();
        self.process.succeed();
    }
}

pub fn crate_directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed, and returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; tools/setup installs it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
