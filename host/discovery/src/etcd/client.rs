//! Requests to an etcd cluster, to one member at a time.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use zeroize::Zeroizing;

use super::access::EtcdAccess;
use super::messages::{Login, Refusal, Streamed, Token};
use crate::EtcdPrefix;

/// Maximal size of an answer's body. A list of `HELPERS_MAX` helpers is smaller.
const BODY_BYTES_MAX: u64 = 8 << 20;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximal length of a message of etcd that is quoted in an error.
const MESSAGE_BYTES_MAX: usize = 200;

/// Status codes of gRPC.
const INVALID_ARGUMENT: u32 = 3;
const NOT_FOUND: u32 = 5;
const PERMISSION_DENIED: u32 = 7;
const FAILED_PRECONDITION: u32 = 9;
const UNAUTHENTICATED: u32 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// etcd's gRPC status code, 0 if its error has none; `None` if etcd did not answer as expected.
    code: Option<u32>,
    message: String,
}

impl Failure {
    pub(crate) fn because(message: impl Into<String>) -> Failure {
        Failure { code: None, message: message.into() }
    }

    /// Whether the key or lease of the request does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code == Some(NOT_FOUND)
    }

    /// Whether all other members would also refuse the request.
    fn is_final(&self) -> bool {
        let codes = [INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION, UNAUTHENTICATED];
        self.code.is_some_and(|code| codes.contains(&code))
    }

    /// Whether the token has expired, or users have changed since etcd issued it.
    fn is_token_expired(&self) -> bool {
        self.code == Some(UNAUTHENTICATED)
            || self.code == Some(INVALID_ARGUMENT) && self.message.contains("auth store is old")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ureq::Error> for Failure {
    fn from(error: ureq::Error) -> Failure {
        Failure::because(match error {
            ureq::Error::Timeout(_) => "does not answer in time".to_owned(),
            ureq::Error::BodyExceedsLimit(bytes) => format!("answers with more than {bytes} bytes"),
            ureq::Error::Protocol(error) => {
                format!("does not answer with HTTP ({error}): is it etcd's client port?")
            }
            ureq::Error::Io(error) => error.to_string(),
            other => shortened(&other.to_string()),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    access: EtcdAccess,
    agent: Agent,
    endpoints: Vec<String>,
    current: usize,
    /// Sent instead of user and password until etcd rejects it as expired.
    token: Option<Zeroizing<String>>,
}

impl Client {
    /// `timeout` bounds one member's answer. Begins with a random member, so that clients spread over all members.
    pub(crate) fn new(place: &EtcdPrefix, access: &EtcdAccess, timeout: Duration) -> Client {
        let mut random = [0; 2];
        // If the kernel has no random bytes, the first member is used.
        let _ = getrandom::fill(&mut random);
        let current = usize::from(u16::from_ne_bytes(random)) % place.endpoints.len().max(1);
        let endpoints = place.endpoints.clone();
        Client { access: access.clone(), agent: agent(access, timeout), endpoints, current, token: None }
    }

    /// The agent that makes the requests. Shutting it down ends the present request.
    pub(crate) fn agent(&self) -> Agent {
        self.agent.clone()
    }

    /// Replaces the agent, with another timeout, so that requests work again after a shutdown.
    pub(crate) fn replace_agent(&mut self, timeout: Duration) {
        self.agent = agent(&self.access, timeout);
    }

    /// Sends a request to one member after the other until one answers it, or refuses it as all others would.
    pub(crate) fn request<T: DeserializeOwned>(&mut self, path: &str, body: &Value) -> Result<T, Failure> {
        let body = body.to_string();
        let mut failed = Failure::because("no endpoint");
        for _ in 0..self.endpoints.len() {
            let endpoint = self.endpoints[self.current].clone();
            failed = match self.request_from_member(&endpoint, path, &body) {
                Ok(answer) => return Ok(answer),
                Err(Failure { code, message }) => Failure { code, message: format!("{endpoint}: {message}") },
            };
            if failed.is_final() {
                break;
            }
            self.current = (self.current + 1) % self.endpoints.len();
        }
        Err(failed)
    }

    /// As [`request`](Self::request), for answers in the form of a stream.
    pub(crate) fn request_streamed<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &Value,
    ) -> Result<T, Failure> {
        let Streamed { result, error } = self.request(path, body)?;
        result.ok_or_else(|| match error {
            Some(error) => refused("", Refusal { error, code: 0 }),
            None => Failure::because("answers without a result"),
        })
    }

    /// Sends a request to one member, and again with a new token if the present one has expired.
    fn request_from_member<T: DeserializeOwned>(
        &mut self,
        endpoint: &str,
        path: &str,
        body: &str,
    ) -> Result<T, Failure> {
        let had_token = self.token.is_some();
        let first = self.request_as_user(endpoint, path, body);
        if !had_token || !first.as_ref().is_err_and(Failure::is_token_expired) {
            return first;
        }
        self.token = None;
        self.request_as_user(endpoint, path, body)
    }

    fn request_as_user<T: DeserializeOwned>(
        &mut self,
        endpoint: &str,
        path: &str,
        body: &str,
    ) -> Result<T, Failure> {
        if self.token.is_none()
            && let Some((name, password)) = self.access.login()
        {
            let login = Login { name, password };
            let login = Zeroizing::new(serde_json::to_string(&login).unwrap_or_default());
            let Token { token } = parse(&self.post(endpoint, "/v3/auth/authenticate", &login)?)?;
            self.token = Some(Zeroizing::new(token));
        }
        parse(&self.post(endpoint, path, body)?)
    }

    fn post(&self, endpoint: &str, path: &str, body: &str) -> Result<Vec<u8>, Failure> {
        let mut request =
            self.agent.post(format!("{endpoint}{path}")).header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", token.as_str());
        }
        let mut answer = request.send(body)?;
        let status = answer.status().as_u16();
        let bytes = answer.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_vec()?;
        if status == 200 {
            return Ok(bytes);
        }
        // Some of etcd's errors are plain text.
        let refusal = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Refusal { error: String::from_utf8_lossy(&bytes).into(), code: 0 });
        Err(refused(&format!(" with status {status}"), refusal))
    }
}

fn agent(access: &EtcdAccess, timeout: Duration) -> Agent {
    Agent::config_builder()
        .tls_config(access.tls())
        .timeout_global(Some(timeout))
        .max_response_header_size(HEAD_BYTES_MAX)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("spillway/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

fn refused(status: &str, refusal: Refusal) -> Failure {
    let (code, message) = refusal.reason();
    let message = if message.is_empty() { "is it etcd, version 3.4 or later?" } else { &message };
    Failure { code: Some(code), message: format!("refuses{status}: {}", shortened(message)) }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = shortened(&error.to_string());
        Failure::because(format!("answers with something other than etcd's JSON ({why})"))
    })
}

fn shortened(message: &str) -> String {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
