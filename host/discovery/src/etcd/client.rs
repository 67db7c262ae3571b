//! Requests to an etcd cluster, one member at a time.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::messages::{Refusal, Streamed};
use crate::EtcdPlace;
use crate::http::{Answer, Line, post};
use crate::stop::Stop;
use crate::stream::Failed;

/// Words of a server that are repeated to operators.
const WORDS_BYTES_MAX: usize = 200;

/// Who is asked.
#[derive(Debug)]
pub(crate) struct Client {
    endpoints: Vec<String>,
    current: usize,
    /// How long an answer may take.
    timeout: Duration,
}

impl Client {
    /// Begins with any of the members, so that all of them get their share.
    pub(crate) fn new(place: &EtcdPlace, timeout: Duration) -> Client {
        let mut any = [0; 2];
        // Without randomness it is the first one.
        let _ = getrandom::fill(&mut any);
        let current = usize::from(u16::from_ne_bytes(any)) % place.endpoints.len().max(1);
        Client { endpoints: place.endpoints.clone(), current, timeout }
    }

    pub(crate) fn members(&self) -> usize {
        self.endpoints.len()
    }

    /// Asks the next member from now on.
    pub(crate) fn turn(&mut self) {
        self.current = (self.current + 1) % self.endpoints.len().max(1);
    }

    /// From now on.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// With the member's name.
    pub(crate) fn blame(&self, failed: &Failed) -> String {
        format!("http://{}: {failed}", self.endpoint())
    }

    /// One question, one answer.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        stop: &Stop,
    ) -> Result<T, Failed> {
        let deadline = Instant::now() + self.timeout;
        let answer = self.stream(path, body, stop, deadline)?;
        parse(&answer.whole(deadline)?)
    }

    /// As [`ask`](Self::ask), where the answer's form is that of a stream.
    pub(crate) fn ask_streamed<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        stop: &Stop,
    ) -> Result<T, Failed> {
        let deadline = Instant::now() + self.timeout;
        let mut answer = self.stream(path, body, stop, deadline)?;
        match answer.line(deadline)? {
            Line::Text(text) => streamed(&text),
            Line::NotYet => Err(Failed::because("does not answer in time")),
            Line::End => Err(Failed::because("answers with nothing")),
        }
    }

    /// A watch: its answer goes on.
    pub(crate) fn open<'a>(&self, path: &str, body: &Value, stop: &'a Stop) -> Result<Answer<'a>, Failed> {
        self.stream(path, body, stop, Instant::now() + self.timeout)
    }

    fn endpoint(&self) -> &str {
        self.endpoints.get(self.current).map_or("", String::as_str)
    }

    fn stream<'a>(
        &self,
        path: &str,
        body: &Value,
        stop: &'a Stop,
        deadline: Instant,
    ) -> Result<Answer<'a>, Failed> {
        let answer = post(self.endpoint(), path, &body.to_string(), stop, deadline)?;
        if answer.status == 200 {
            return Ok(answer);
        }
        let status = answer.status;
        let refusal: Refusal = serde_json::from_slice(&answer.whole(deadline)?).unwrap_or_default();
        let words =
            if refusal.error.is_empty() { "is it etcd, version 3.4 or later?" } else { &refusal.error };
        let message = format!("refuses with status {status}: {}", short(words));
        Err(Failed::Refused { code: refusal.code, message })
    }
}

/// A line of a streamed answer.
pub(crate) fn streamed<T: DeserializeOwned>(line: &[u8]) -> Result<T, Failed> {
    let Streamed { result, error } = parse(line)?;
    result.ok_or_else(|| match error {
        Some(error) => Failed::because(format!("refuses: {}", short(&error.to_string()))),
        None => Failed::because("answers with nothing"),
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failed::because(format!(
            "answers with something else than etcd's JSON ({})",
            short(&error.to_string())
        ))
    })
}

fn short(words: &str) -> String {
    let mut end = words.len().min(WORDS_BYTES_MAX);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
