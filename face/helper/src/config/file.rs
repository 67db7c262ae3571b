//! Reads a configuration file, and reports all errors at once with their lines and columns.

mod engine;
mod helper;
mod listening;
mod registration;
mod service;
mod suggestion;
mod values;

use std::env;
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use self::engine::EngineReader;
use self::listening::Listening;
use self::suggestion::with_suggestion;
use self::values::Values;
use super::HelperConfig;
use super::problem::{Problem, Problems};
use super::schema::File;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// How a file is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Directory of key files with relative paths; the service manager's credential directory is searched first.
    pub base: PathBuf,
    /// Whether to read key files and check this host's interfaces and ports. False to check a file on a host that
    /// is not the helper's.
    pub reads_host: bool,
}

impl Reading {
    /// A key file's path. A relative path names a file in `CREDENTIALS_DIRECTORY` (systemd's credentials) if that file
    /// exists, otherwise a file in `base`.
    fn key_file(&self, text: &str) -> PathBuf {
        let credential =
            env::var_os("CREDENTIALS_DIRECTORY").map(|directory| Path::new(&directory).join(text));
        credential.filter(|path| path.exists()).unwrap_or_else(|| self.base.join(text))
    }
}

/// Reads a configuration file, and resolves the host names in it. If `reads_host` is true, also reads the key files
/// that the file names and checks its interfaces. Fails with all errors of the file.
pub fn read_file(path: &Path, reads_host: bool) -> Result<HelperConfig, Problems> {
    let whole_file = |message: String| Problems {
        path: path.to_owned(),
        problems: vec![Problem { line: 0, column: 0, message }],
    };
    let unreadable = |error: &dyn Display| whole_file(format!("cannot be read: {error}"));
    let bytes = read_bounded(path).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = format!(
            "has more than {FILE_BYTES_MAX} bytes, the limit for a configuration: is it the right file?"
        );
        return Err(whole_file(message));
    }
    // The length is checked first: reading stops at the limit, possibly inside a multi-byte character.
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8 text"))?;
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    read_text(&text, &Reading { base, reads_host })
        .map_err(|problems| Problems { path: path.to_owned(), problems })
}

/// Reads at most one byte more than [`FILE_BYTES_MAX`]. Refuses files that are not regular: reading a pipe without
/// a writer would block the helper's reload.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.union(OFlags::NOCTTY);
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a configuration. Fails with all errors of the text, at least one, ordered by line.
pub fn read_text(text: &str, reading: &Reading) -> Result<HelperConfig, Vec<Problem>> {
    let file: File = toml::from_str(text).map_err(|error| {
        // The parser's message may have several lines; a problem is reported on one line.
        let message = error.message().replace('\n', "; ");
        let message = with_suggestion(&message).unwrap_or(message);
        vec![Problem::at(text, error.span().unwrap_or(0..0), message)]
    })?;
    let mut reader = Reader {
        reading,
        values: Values::new(text),
        engine: EngineReader::new(reading.reads_host),
        listening: Listening::default(),
    };
    let config = reader.config(&file);
    let mut problems = reader.values.into_problems();
    // If key files are not read, `config.check()` would report missing keys.
    if problems.is_empty()
        && reading.reads_host
        && let Err(error) = config.check()
    {
        problems.push(Problem { line: 0, column: 0, message: error.to_string() });
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

/// Converts the parsed file. A value with an error is replaced by its default.
struct Reader<'a> {
    reading: &'a Reading,
    values: Values<'a>,
    engine: EngineReader,
    listening: Listening,
}

impl Reader<'_> {
    fn config(&mut self, file: &File) -> HelperConfig {
        let mut config = self.helper(&file.helper);
        config.etcd = registration::etcd_files(&mut self.values, self.reading, &file.etcd);
        if file.service.is_empty() {
            self.values.problem(
                0..0,
                "no service to relay for: add a section [service.NAME] with server and listen",
            );
        }
        for (name, section) in &file.service {
            let service = self.service(name, section, &config.etcd);
            config.services.push(service);
        }
        config
    }
}

#[cfg(test)]
mod tests;
