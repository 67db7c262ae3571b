//! Reads the text of a configuration file, and parses its sections.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;

use crate::problem::{Problem, Problems};
use crate::suggestion::with_suggestion;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// How a file is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Directory of key files with relative paths; the service manager's credential directory is searched first.
    pub base: PathBuf,
    /// Whether to read key files and check this host's interfaces and ports. False to check a file on another host
    /// than the daemon's.
    pub reads_host: bool,
}

impl Reading {
    /// A key file's path. A relative path names a file in `CREDENTIALS_DIRECTORY` (systemd's credentials) if that file
    /// exists, otherwise a file in `base`.
    pub fn key_file(&self, text: &str) -> PathBuf {
        let credential =
            env::var_os("CREDENTIALS_DIRECTORY").map(|directory| Path::new(&directory).join(text));
        credential.filter(|path| path.exists()).unwrap_or_else(|| self.base.join(text))
    }
}

/// Reads a file, and its settings with `read`. Relative paths in the file start in its directory.
///
/// # Errors
/// All errors of the file.
pub fn read_file<T>(
    path: &Path,
    reads_host: bool,
    read: impl FnOnce(&str, &Reading) -> Result<T, Vec<Problem>>,
) -> Result<T, Problems> {
    let text = read_text_file(path)?;
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    read(&text, &Reading { base, reads_host })
        .map_err(|problems| Problems { path: path.to_owned(), problems })
}

/// Reads the text of a configuration file.
///
/// # Errors
/// The file cannot be read, is not a regular file, is longer than 1 MiB, or is not UTF-8.
pub fn read_text_file(path: &Path) -> Result<String, Problems> {
    let fail =
        |message: String| Problems { path: path.to_owned(), problems: vec![Problem::of_file(message)] };
    let bytes = read_bounded(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!(
            "has more than {FILE_BYTES_MAX} bytes, the limit for a configuration: is it the right file?"
        )));
    }
    // The length is checked first: reading stops at the limit, possibly inside a multi-byte character.
    String::from_utf8(bytes).map_err(|_| fail("cannot be read: it is not UTF-8 text".to_owned()))
}

/// Reads at most one byte more than [`FILE_BYTES_MAX`]. Refuses files that are not regular: reading a pipe without
/// a writer would block a daemon's reload.
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

/// Parses a configuration's text into its sections.
///
/// # Errors
/// The text is not TOML, or has an unknown key; the error suggests a similar known one.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    toml::from_str(text).map_err(|error| {
        // The parser's message may have several lines; an error is reported on one line.
        let message = error.message().replace('\n', "; ");
        let message = with_suggestion(&message).unwrap_or(message);
        Problem::at(text, error.span().unwrap_or(0..0), message)
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn files_that_are_too_long_or_not_regular_are_refused() {
        let refusal = |path: &Path| read_text_file(path).unwrap_err().to_string();
        assert!(refusal(Path::new("/dev/zero")).contains("is not a regular file"));
        assert!(refusal(Path::new("/")).contains("is not a regular file"));
        assert!(
            refusal(Path::new("/no/such/file")).starts_with("/no/such/file: cannot be read: No such file")
        );
        let directory = std::env::temp_dir().join(format!("spillway-config-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (fifo, long) = (directory.join("fifo"), directory.join("long.toml"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(
            refusal(&fifo).contains("is not a regular file"),
            "a pipe should be refused without waiting for a writer"
        );
        // In the second text, the limit of 1 MiB lies inside a character of three bytes.
        for text in ["#".repeat(1 << 21), "€".repeat(1 << 20)] {
            fs::write(&long, text).unwrap();
            assert!(refusal(&long).contains("has more than 1048576 bytes"));
        }
        fs::write(&long, b"# \xff").unwrap();
        assert!(refusal(&long).contains("it is not UTF-8 text"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn relative_paths_start_in_the_directory_of_the_file() {
        let path = std::env::temp_dir().join(format!("spillway-config-{}.toml", std::process::id()));
        fs::write(&path, "x").unwrap();
        let read = read_file(&path, false, |text, reading| Ok((text.to_owned(), reading.key_file("a.key"))));
        let failed = read_file::<()>(&path, true, |_, reading| {
            assert!(reading.reads_host);
            Err(vec![Problem::of_file("wrong".into())])
        });
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), ("x".to_owned(), std::env::temp_dir().join("a.key")));
        assert_eq!(failed.unwrap_err().to_string(), format!("{}: wrong", path.display()));
    }
}
