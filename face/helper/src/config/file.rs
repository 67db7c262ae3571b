//! Reads a configuration file, and reports all errors at once with their lines and columns.

mod engine;
mod helper;
mod listening;
mod registration;
mod service;

use std::path::Path;

use spillway_config::{Problem, Problems, Reading, Values, parse};

use self::engine::EngineReader;
use self::listening::Listening;
use super::HelperConfig;
use super::schema::File;

/// Reads a configuration file, and resolves the host names in it. If `reads_host` is true, also reads the key files
/// that the file names and checks its interfaces.
///
/// # Errors
/// All errors of the file.
pub fn read_file(path: &Path, reads_host: bool) -> Result<HelperConfig, Problems> {
    spillway_config::read_file(path, reads_host, read_text)
}

/// Reads the text of a configuration.
///
/// # Errors
/// All errors of the text, at least one, ordered by line.
fn read_text(text: &str, reading: &Reading) -> Result<HelperConfig, Vec<Problem>> {
    let file: File = parse(text).map_err(|problem| vec![problem])?;
    let mut reader = Reader {
        reading,
        values: Values::new(text),
        engine: EngineReader::new(reading.reads_host),
        listening: Listening::default(),
    };
    let config = reader.config(&file);
    let config = reader.values.finish(config)?;
    // If key files are not read, `config.check()` would report missing keys.
    if reading.reads_host {
        config.check().map_err(|error| vec![Problem::of_file(error.to_string())])?;
    }
    Ok(config)
}

/// Converts the parsed file. A value with an error is replaced by its default, and a service without the address of its
/// server is left out; the result is then not used.
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
            config.services.extend(service);
        }
        config
    }
}

#[cfg(test)]
mod tests;
