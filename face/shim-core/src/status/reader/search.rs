//! The pages of this machine: which directories hold them, and which of them can be read.

use std::collections::HashSet;
use std::fs::DirEntry;
use std::io;
use std::path::PathBuf;

use super::server_page::ServerPage;
use crate::status::origin::{DIRECTORIES, DIRECTORY, PREFIX};

/// Maximum number of pages that are opened in one directory, and of file names that are read.
const FILES_MAX: usize = 4096;
const NAMES_MAX: usize = 1 << 20;

/// A page that cannot be read.
#[derive(Debug)]
pub struct UnreadablePage {
    /// The page's path.
    pub path: PathBuf,
    /// Why the page cannot be read.
    pub error: io::Error,
}

/// The directories where pages may be.
pub fn page_directories() -> Vec<String> {
    let configured = crate::environment::variable(DIRECTORY).filter(|name| !name.is_empty());
    match configured {
        Some(directory) => vec![directory],
        None => DIRECTORIES.map(str::to_owned).to_vec(),
    }
}

/// The pages of all running servers, and the unreadable pages. Removes pages of killed servers, where this user may.
pub fn find_pages() -> (Vec<ServerPage>, Vec<UnreadablePage>) {
    find_in(&page_directories())
}

pub(in crate::status) fn find_in(directories: &[String]) -> (Vec<ServerPage>, Vec<UnreadablePage>) {
    let (mut pages, mut unreadable) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for directory in directories {
        let Ok(files) = std::fs::read_dir(directory) else { continue };
        let is_page = |file: &DirEntry| file.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        for file in files.take(NAMES_MAX).flatten().filter(is_page).take(FILES_MAX) {
            match ServerPage::open(&file.path()) {
                Ok(Some(page)) if known.insert(page.identity()) => pages.push(page),
                Ok(_) => {}
                Err(error) => unreadable.push(UnreadablePage { path: file.path(), error }),
            }
        }
    }
    pages.sort_by_key(|page| page.pid);
    (pages, unreadable)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;
    use crate::status::layout::{self, header};
    use crate::status::reader::test_pages::{scratch, write};
    use crate::status::test_holder::Holder;

    /// The directory's file system lists the newest file first.
    #[test]
    fn page_is_found_among_many_other_files() {
        let directory = Path::new("/dev/shm").join(format!("spillway-many-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join(format!("{PREFIX}a"));
        write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)]);
        let holder = Holder::of(&path);
        for number in 0..=FILES_MAX {
            File::create(directory.join(format!("other-{number}"))).unwrap();
        }
        let (pages, _) = find_in(&[directory.to_str().unwrap().to_owned()]);
        drop(holder);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(pages.len(), 1);
    }

    #[test]
    fn hard_links_of_a_page_are_reported_once() {
        let directory = scratch("names");
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join(format!("{PREFIX}a"));
        write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)]);
        let holder = Holder::of(&path);
        for name in ["b", "c"] {
            std::fs::hard_link(&path, directory.join(format!("{PREFIX}{name}"))).unwrap();
        }
        let (pages, unreadable) = find_in(&[directory.to_str().unwrap().to_owned()]);
        drop(holder);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((pages.len(), unreadable.len()), (1, 0));
    }
}
