//! Errors of key files, with the operator's next step.

use std::fmt;
use std::io;
use std::path::PathBuf;

use spillway_auth::KeyError;

/// An error of a key file. Its text contains the operator's next step.
#[derive(Debug)]
pub struct KeyFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// The error.
    pub problem: Problem,
}

/// An error of another program's secret file. Its text contains the operator's next step, and no part of the secret.
#[derive(Debug)]
pub struct SecretFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// The error.
    pub problem: Problem,
}

/// What is wrong with a key file or another secret's file.
#[derive(Debug)]
pub enum Problem {
    /// The file cannot be opened or read.
    Read(io::Error),
    /// The path is a directory, a pipe or a device.
    NotAFile,
    /// The file's mode, which is given, lets users other than the owner use the file.
    Mode(u32),
    /// The file is longer than allowed.
    TooLong,
    /// The text is not a key.
    Text(KeyError),
    /// The file exists already. Keys are never overwritten.
    Exists,
    /// The file cannot be written.
    Write(io::Error),
    /// The kernel returned no random bytes for a key.
    Random(io::Error),
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::Read(error) if error.kind() == io::ErrorKind::NotFound => {
                write!(f, "key file {path} does not exist; make one with: spillway key new {path}")
            }
            Problem::Read(error) => write!(f, "cannot read key file {path}: {error}"),
            Problem::NotAFile => write!(f, "key file {path} is not a regular file"),
            Problem::Mode(mode) => write!(
                f,
                "key file {path} has mode {:04o}: users other than its owner can use it; run: chmod 600 {path}",
                mode & 0o7777
            ),
            Problem::TooLong => write!(f, "{path} is too long for a key file; is it the right file?"),
            Problem::Text(error) => {
                write!(f, "{path} is not a key file: {error}; make one with: spillway key new FILE")
            }
            Problem::Exists => write!(
                f,
                "{path} exists already, and a key is never overwritten; choose another name, or remove it first"
            ),
            Problem::Write(error) => {
                write!(f, "cannot write key file {path}: {error}")?;
                match self.path.parent().map(|directory| directory.display()) {
                    Some(directory) if error.kind() == io::ErrorKind::NotFound => {
                        write!(f, "; create its directory: mkdir -p {directory}")
                    }
                    Some(directory) if error.kind() == io::ErrorKind::PermissionDenied => {
                        write!(
                            f,
                            "; write it as a user who may create files in {directory}, or choose another place"
                        )
                    }
                    _ => Ok(()),
                }
            }
            Problem::Random(error) => {
                write!(f, "the kernel returned no random bytes for the key in {path}: {error}")
            }
        }
    }
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::Read(error) => write!(f, "cannot read {path}: {error}"),
            Problem::NotAFile => write!(f, "{path} is not a regular file"),
            Problem::Mode(mode) => write!(
                f,
                "{path} has mode {:04o}: users other than its owner can use it; run: chmod 600 {path}",
                mode & 0o7777
            ),
            _ => write!(f, "{path} is too long for a secret; is it the right file?"),
        }
    }
}

// No `source`: the texts contain the cause, and a program that prints the chain would print it twice.
impl std::error::Error for SecretFileError {}

impl std::error::Error for KeyFileError {}
