//! Names of daemons, services and servers.

const NAME_BYTES_MAX: usize = 64;

/// Whether `text` is a valid name. Names become metric labels and command arguments: only letters, digits, `-`, `_`
/// and `.` are allowed, and at most 64 of them.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_letters_digits_and_three_signs() {
        assert!(is_name("cache-1.a_b") && is_name(&"x".repeat(NAME_BYTES_MAX)));
        for wrong in ["", "a b", "ä", "a/b", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
