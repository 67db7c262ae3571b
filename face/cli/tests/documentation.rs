//! Runs the shell blocks of README and docs as printed, and checks their links and the names in the sources.
//!
//! Each block runs on one host, unless a comment above it names another place. Hosts are network namespaces inside the
//! test's own namespace, which has its own ports, `/etc/spillway` and `/run`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const HOSTS: &str = include_str!("support/hosts.sh");

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    OneHost,
    /// Each paragraph's comment, such as `# on a helper's host`, names its host.
    ThreeHosts,
    /// On the host `server`, `helper` or `client`, after the README's blocks.
    Host(String),
    /// Another test runs the block, or the comment gives the reason why it is not run.
    Elsewhere(String),
}

struct Block {
    place: Place,
    line: usize,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(ROOT).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let pages: Vec<PathBuf> = names.lines().map(|name| Path::new(ROOT).join(name)).collect();
    assert!(pages.len() > 20, "more than 20 pages should be found: {names}");
    pages
}

fn place(comment: &str, page: &Path) -> Place {
    let Some(place) = comment.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) else {
        return Place::OneHost;
    };
    let host = |name: &str| Place::Host(name.to_owned());
    match place {
        "run on three hosts" => Place::ThreeHosts,
        "run on the server's host" => host("server"),
        "run on the helper's host" => host("helper"),
        "run on the client's host" => host("client"),
        other => {
            let test = other.strip_prefix("run by ").map(|test| Path::new(ROOT).join(test));
            let is_explained = test.is_some_and(|test| test.exists()) || other.starts_with("not run: ");
            assert!(is_explained, "{}: no place for a block: {other}", page.display());
            Place::Elsewhere(other.to_owned())
        }
    }
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let (mut blocks, mut before) = (Vec::new(), "");
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```sh" {
            let body: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```").collect();
            blocks.push(Block { place: place(before, page), line: number + 1, text: body.join("\n") + "\n" });
        }
        before = line;
    }
    blocks
}

/// A directory of one run, with copies of the programs that every user may run.
struct Run(PathBuf);

impl Run {
    fn new(name: &str) -> Run {
        let directory = std::env::temp_dir().join(format!("spillway-docs-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_spillway")).parent().unwrap();
        for program in ["spillway", "libspillway_shim.so"] {
            fs::copy(programs.join(program), directory.join(program))
                .unwrap_or_else(|error| panic!("{program}: {error}; build the workspace first"));
        }
        Run(directory)
    }

    /// Runs a script in its own namespaces; `None` if this user may not create any.
    fn script(&self, script: &str) -> Option<String> {
        let file = self.0.join("script.sh");
        fs::write(&file, format!("{HOSTS}\n{script}")).unwrap();
        let output = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["bash", "-u"])
            .arg(&file)
            .arg(&self.0)
            .output()
            .unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}:\n{text}", output.status);
        Some(text)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root, for namespaces");
    }
    is_root
}

#[test]
fn every_block_has_a_known_place() {
    for page in pages() {
        blocks(&page);
    }
}

#[test]
fn blocks_for_one_host_run_as_printed() {
    if !is_root() {
        return;
    }
    let mut pages_run = 0;
    for page in pages() {
        let one_host_blocks: Vec<Block> =
            blocks(&page).into_iter().filter(|block| block.place == Place::OneHost).collect();
        if one_host_blocks.is_empty() {
            continue;
        }
        pages_run += 1;
        let lines: Vec<usize> = one_host_blocks.iter().map(|block| block.line).collect();
        println!("{}: blocks at lines {lines:?}", page.display());
        let script: String = one_host_blocks.iter().map(|block| block.text.as_str()).collect();
        let run = Run::new(&format!("one-{pages_run}"));
        let output_text = run.script(&format!("one_host\nset -e -o pipefail\n{script}")).unwrap();
        assert!(!output_text.contains("panicked"), "{output_text}");
    }
    assert_eq!(pages_run, 2, "README and tutorial");
}

/// Converts a block for three hosts into calls of `on HOST`, one for each paragraph.
fn paragraphs(block: &str) -> String {
    let mut script = String::new();
    for paragraph in block.split("\n\n") {
        let comment = paragraph.lines().next().unwrap_or_default();
        let host = ["server", "helper", "client"]
            .into_iter()
            .find(|host| comment.contains(&format!("{host}'s host")));
        let host = host.unwrap_or("server");
        script += &format!("on {host} <<'PARAGRAPH'\n{}\nPARAGRAPH\n", paragraph.trim_end());
    }
    script
}

#[test]
fn blocks_for_several_hosts_run_as_printed() {
    if !is_root() {
        return;
    }
    let readme = Path::new(ROOT).join("README.md");
    let mut script = String::from("three_hosts\nset -e -o pipefail\n");
    for block in blocks(&readme).iter().filter(|block| block.place == Place::ThreeHosts) {
        script += &paragraphs(&block.text);
    }
    script += "check_deployment\n";
    let mut blocks_run = 0;
    for page in pages() {
        for block in blocks(&page) {
            let Place::Host(host) = &block.place else { continue };
            println!("{}: the block at line {} on {host}", page.display(), block.line);
            script += &format!("on {host} <<'PARAGRAPH'\n{}PARAGRAPH\n", block.text);
            blocks_run += 1;
        }
    }
    assert!(blocks_run >= 4, "only {blocks_run} blocks run");
    let output_text = Run::new("three").script(&script).unwrap();
    assert!(
        output_text.contains("the deployment answers") && !output_text.contains("panicked"),
        "{output_text}"
    );
}

#[test]
fn links_between_pages_are_valid() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            let is_file = !file.is_empty() && !target.contains("://");
            if is_file && !page.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Whether a path in a page is a pattern, such as `proof/sim/src/WORLD/`, and not one file or folder.
fn is_pattern(path: &str) -> bool {
    let is_placeholder =
        |part: &str| !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_uppercase());
    let has_placeholder = !path.ends_with(".md") && path.split(['/', '.', '-']).any(is_placeholder);
    has_placeholder || path.contains(['*', '{', '…', ' '])
}

/// Code spans that begin with a folder of this project name files and folders that exist.
#[test]
fn files_that_pages_name_exist() {
    const FOLDERS: [&str; 7] = ["core/", "host/", "face/", "proof/", "docs/", "packaging/", "tools/"];
    let (mut found, mut missing) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (line, text) in (1..).zip(text.lines()) {
            let is_path = |span: &&str| FOLDERS.iter().any(|folder| span.starts_with(folder));
            for path in text.split('`').skip(1).step_by(2).filter(is_path).filter(|path| !is_pattern(path)) {
                found += 1;
                if !Path::new(ROOT).join(path).exists() {
                    missing.push(format!("{}:{line}: {path}", page.display()));
                }
            }
        }
    }
    assert!(found > 100 && missing.is_empty(), "{found} paths; these do not exist: {missing:#?}");
}

fn sources() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(ROOT).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    names.lines().map(|name| Path::new(ROOT).join(name)).filter(|file| file.exists()).collect()
}

#[test]
fn old_names_do_not_come_back() {
    let list = fs::read_to_string(Path::new(ROOT).join("docs/old-names.txt")).unwrap();
    let names: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(" -> ").unwrap_or_else(|| panic!("no arrow: {line}")).0)
        .collect();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        for name in &names {
            for (offset, _) in text.match_indices(name) {
                let continues_before = text[..offset].chars().next_back().is_some_and(is_part);
                let continues_after = text[offset + name.len()..].chars().next().is_some_and(is_part);
                if !continues_before && !continues_after {
                    found.push(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(names.len() > 5 && found.is_empty(), "{found:#?}");
}

/// The words of letters, digits and `_` in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

/// The part of a name before a `…` or `*`, and the part after it. `None` for a whole name.
fn abbreviated(name: &str) -> Option<(&str, &str)> {
    let at = name.find(['…', '*'])?;
    Some((&name[..at], name[at..].trim_start_matches(['…', '*'])))
}

/// A name in a code span of SPECIFICATION.md is a test, or occurs in the sources (a setting or a figure), or
/// its line has a `spillway-lab` command, which composes names of figures. A name with `…` is a test.
#[test]
fn tests_that_the_specification_names_exist() {
    let (mut functions, mut known) = (BTreeSet::new(), BTreeSet::new());
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        let mut words = words(&text);
        while let Some(word) = words.next() {
            known.insert(word.to_owned());
            if word == "fn" {
                functions.extend(words.next().map(str::to_owned));
            }
        }
    }
    let is_function = |name: &str| match abbreviated(name) {
        None => functions.contains(name),
        Some((before, after)) => {
            functions.iter().any(|function| function.starts_with(before) && function.ends_with(after))
        }
    };
    let is_name = |span: &str| {
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        span.contains('_') && span.chars().all(|letter| is_part(letter) || "_…*".contains(letter))
    };
    let specification = fs::read_to_string(Path::new(ROOT).join("SPECIFICATION.md")).unwrap();
    let (mut found, mut missing) = (0, Vec::new());
    for (line, text) in (1..).zip(specification.lines()) {
        for name in text.split('`').skip(1).step_by(2).filter(|span| is_name(span)) {
            let is_other = !name.contains('…') && (known.contains(name) || text.contains("`spillway-lab "));
            found += usize::from(is_function(name));
            if !is_function(name) && !is_other {
                missing.push(format!("SPECIFICATION.md:{line}: {name}"));
            }
        }
    }
    assert!(found > 100 && missing.is_empty(), "{found} tests exist; these do not: {missing:#?}");
}
