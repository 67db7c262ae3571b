//! Finds the programs that a script starts with `exec`, without running the script.
//!
//! Recognises `exec NAME`, and `exec $VARIABLE` if the variable is assigned one plain name. A script with other forms
//! is not rejected: the preload library itself decides in the process that waits for clients.

/// Bounds on the lines that are read and on the programs that are examined.
const LINES_MAX: usize = 10_000;
const PROGRAMS_MAX: usize = 16;

/// The interpreter in a script's first line; for `env` the program that it starts.
pub(super) fn interpreter(first_line: &str) -> Option<&str> {
    let mut words = first_line.trim().split_ascii_whitespace();
    let program = words.next()?;
    if program.rsplit('/').next() != Some("env") {
        return Some(program);
    }
    words.find(|word| !word.starts_with('-') && !word.contains('='))
}

/// The programs behind `exec`, in shell and Perl scripts.
pub(super) fn executed_programs(text: &str) -> Vec<String> {
    let mut variables: Vec<(&str, &str)> = Vec::new();
    let mut programs = Vec::new();
    for line in text.lines().take(LINES_MAX).map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = assignment(line) {
            variables.push((name, value));
        }
        let Some(rest) = after_exec(line) else { continue };
        if let Some(program) = first_word(rest).and_then(|word| resolve(word, &variables))
            && programs.len() < PROGRAMS_MAX
        {
            programs.push(program.to_owned());
        }
    }
    programs
}

/// `NAME=value` of shells, `$name = "value"` of Perl.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim().rsplit(' ').next()?.trim_start_matches('$');
    let value = value.trim().trim_end_matches(';').trim_matches(['"', '\'']);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_name && is_plain(value)).then_some((name, value))
}

fn after_exec(line: &str) -> Option<&str> {
    let line = line.strip_prefix("exec").or_else(|| Some(line.split_once("; exec")?.1))?;
    let rest = line.strip_prefix([' ', '\t', '('])?.trim_start();
    // `exec >file` only redirects descriptors.
    (!rest.starts_with(['>', '<', '-', '&']) && !rest.starts_with(|c: char| c.is_ascii_digit()))
        .then_some(rest)
}

fn first_word(rest: &str) -> Option<&str> {
    let word = rest.trim_start_matches(['"', '\'']).split([' ', '\t', '"', '\'', ';', ')', ',']).next()?;
    (!word.is_empty()).then_some(word)
}

fn resolve<'a>(word: &'a str, variables: &[(&str, &'a str)]) -> Option<&'a str> {
    let Some(name) = word.strip_prefix('$') else { return is_plain(word).then_some(word) };
    let name = name.trim_start_matches('{').trim_end_matches('}');
    let mut values = variables.iter().filter(|(variable, _)| *variable == name).map(|(_, value)| *value);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_found_behind_env() {
        let cases = [
            ("/bin/sh -e", "/bin/sh"),
            (" /usr/bin/perl -w", "/usr/bin/perl"),
            ("/usr/bin/env python3", "python3"),
            ("/usr/bin/env -S A=b node --flag", "node"),
        ];
        for (line, program) in cases {
            assert_eq!(interpreter(line), Some(program), "{line}");
        }
        assert_eq!(interpreter("/usr/bin/env"), None);
        assert_eq!(interpreter(""), None);
    }

    #[test]
    fn the_program_behind_exec_is_found() {
        let shell = "#!/bin/sh\nset -e\nSERVER=/opt/cache/bin/server\nexec 3>/dev/null\nexec >>log\n\
                     [ -x $SERVER ] || exit 1; exec \"$SERVER\" --port 1 \"$@\"\n";
        assert_eq!(executed_programs(shell), ["/opt/cache/bin/server"]);
        let perl = "my $params;\nmy $memcached = \"/usr/bin/memcached\";\nexec \"$memcached $params\";\n";
        assert_eq!(executed_programs(perl), ["/usr/bin/memcached"]);
        assert_eq!(executed_programs("exec memcached -m 64"), ["memcached"]);
        assert_eq!(
            executed_programs("execute this\n# exec nothing\nexec \"$@\"\nexec $(which x)\n"),
            [""; 0]
        );
        let twice = "A=/bin/one\nA=/bin/two\nexec $A\n";
        assert_eq!(executed_programs(twice), [""; 0], "a variable with two values should be ignored");
    }

    #[test]
    fn unusual_texts_do_not_panic() {
        for text in
            ["exec", "exec ", "exec \"", "=\n==\n$=x\nexec $", "exec (\"", "; exec", "\u{fe0f}=\u{1f600}"]
        {
            let _ = executed_programs(text);
        }
    }
}
