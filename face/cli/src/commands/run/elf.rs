//! Reads from an ELF file whether the preload library can be loaded into it.

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// ELF's number of the processor architecture.
    pub(super) machine: u16,
    pub(super) is_64_bit: bool,
    /// Path of the dynamic linker; `None` for static programs.
    pub(super) interpreter: Option<String>,
    pub(super) is_go: bool,
    /// The newest glibc version that the file requires.
    pub(super) glibc: Option<Version>,
}

/// A glibc version, such as (2, 36).
pub(super) type Version = (u32, u32);

impl Elf {
    /// `None`: not an ELF file, or a malformed one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Elf> {
        match FileKind::parse(bytes).ok()? {
            FileKind::Elf64 => parse::<FileHeader64<Endianness>>(bytes).ok(),
            FileKind::Elf32 => parse::<FileHeader32<Endianness>>(bytes).ok(),
            _ => None,
        }
    }
}

fn parse<H: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> object::Result<Elf> {
    let header = H::parse(bytes)?;
    let endian = header.endian()?;
    let mut elf = Elf {
        machine: header.e_machine(endian),
        is_64_bit: header.is_type_64(),
        interpreter: None,
        is_go: false,
        glibc: None,
    };
    for segment in header.program_headers(endian, bytes)? {
        if let Some(path) = segment.interpreter(endian, bytes)? {
            elf.interpreter = Some(String::from_utf8_lossy(path).into_owned());
        }
        if let Some(mut notes) = segment.notes(endian, bytes)? {
            while let Ok(Some(note)) = notes.next() {
                elf.is_go |= note.name() == b"Go";
            }
        }
    }
    // A stripped program may have no sections; then only its segments are examined.
    let Ok(sections) = header.sections(endian, bytes) else { return Ok(elf) };
    for section in sections.iter() {
        elf.is_go |= sections.section_name(endian, section).is_ok_and(|name| name == b".go.buildinfo");
    }
    if let Ok(Some((mut requirements, strings))) = sections.gnu_verneed(endian, bytes)
        && let Ok(strings) = sections.strings(endian, bytes, strings)
    {
        while let Ok(Some((_, mut versions))) = requirements.next() {
            while let Ok(Some(version)) = versions.next() {
                let required = version.name(endian, strings).ok().and_then(glibc_version);
                elf.glibc = elf.glibc.max(required);
            }
        }
    }
    Ok(elf)
}

fn glibc_version(name: &[u8]) -> Option<Version> {
    version(core::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?)
}

/// Parses `2.36` or `2.2.5`; ignores the third number.
pub(super) fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PT_INTERP: u32 = 3;
    const PT_NOTE: u32 = 4;

    /// An ELF file with these segments: (type, content).
    fn program(machine: u16, parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * parts.len()];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        (bytes[20], bytes[32], bytes[52]) = (1, 64, 64);
        (bytes[54], bytes[56]) = (56, parts.len() as u8);
        for (index, (kind, content)) in parts.iter().enumerate() {
            let (entry, offset) = (64 + 56 * index, bytes.len() as u64);
            bytes[entry..entry + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[entry + 8..entry + 16].copy_from_slice(&offset.to_le_bytes());
            bytes[entry + 32..entry + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes[entry + 48] = 4;
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }

    #[test]
    fn static_dynamic_and_go_programs_are_recognised() {
        let glibc = Elf::parse(&program(62, &[(1, b"code"), (PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0")]));
        let glibc = glibc.unwrap();
        assert_eq!(glibc.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!((glibc.machine, glibc.is_go, glibc.is_64_bit), (62, false, true));
        assert_eq!(Elf::parse(&program(62, &[(1, b"code")])).unwrap().interpreter, None);
        let note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        assert!(Elf::parse(&program(62, &[(PT_NOTE, note)])).unwrap().is_go);
    }

    #[test]
    fn this_program_requires_glibc() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        assert!(elf.glibc.is_some_and(|version| ((2, 2)..(3, 0)).contains(&version)), "{elf:?}");
        assert!(!elf.is_go && elf.interpreter.is_some());
        assert_eq!(version("2.2.5"), Some((2, 2)));
        assert_eq!(version("PRIVATE"), None);
    }

    #[test]
    fn malformed_programs_do_not_panic() {
        let program_bytes = program(62, &[(PT_INTERP, b"/lib/ld.so\0"), (PT_NOTE, b"x")]);
        for cut in 0..program_bytes.len() {
            let _ = Elf::parse(&program_bytes[..cut]);
        }
        for position in 0..program_bytes.len() {
            let mut bytes = program_bytes.clone();
            bytes[position] = 0xff;
            let _ = Elf::parse(&bytes);
        }
        assert_eq!(Elf::parse(b"#!/bin/sh"), None);
    }
}
