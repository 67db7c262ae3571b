//! Credentials for etcd: certificates and a password, read from files and checked.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use spillway_keys::{SecretFileError, read_secret_file};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use zeroize::Zeroizing;

use crate::EtcdPrefix;

/// Five times the size of the bundle with all public authorities.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
const KEY_BYTES_MAX: usize = 64 << 10;
const PASSWORD_BYTES_MAX: usize = 1024;

/// Files with the trusted authorities and this program's credentials. Certificates and keys are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// Certificates of the authorities that may have issued etcd's certificate; required for https.
    pub ca_file: Option<PathBuf>,
    /// The client certificate with its chain, for an etcd that requires one.
    pub cert_file: Option<PathBuf>,
    /// The client certificate's private key.
    pub key_file: Option<PathBuf>,
    /// The user, for an etcd with authentication enabled.
    pub user: Option<String>,
    /// The user's password, on one line.
    pub password_file: Option<PathBuf>,
}

/// The checked contents of [`EtcdFiles`]. The default is for an etcd over http without users.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdAccess(Arc<Secrets>);

#[derive(Default, PartialEq, Eq)]
struct Secrets {
    ca: Vec<u8>,
    chain: Vec<u8>,
    key: Zeroizing<String>,
    login: Option<(String, Zeroizing<String>)>,
}

/// An error in the files for etcd. Its text contains the operator's next step.
#[derive(Debug)]
pub enum AccessError {
    /// The file of a private key or a password cannot be used.
    Secret(SecretFileError),
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// A file contains no certificate.
    NoCertificate(PathBuf),
    /// The private key cannot be used, or belongs to another certificate.
    Key(PathBuf, rustls::Error),
    /// A file contains no private key.
    NoKey(PathBuf),
    /// The password file is empty, or has several lines.
    Password(PathBuf),
    /// Options that require or exclude each other. Holds the whole message.
    Combination(&'static str),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::Secret(error) => error.fmt(f),
            AccessError::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            AccessError::NoCertificate(path) => {
                write!(f, "{} holds no certificate: give one in PEM", path.display())
            }
            AccessError::Key(path, error) => write!(
                f,
                "the key in {} cannot be used ({error}): give the one that belongs to the certificate",
                path.display()
            ),
            AccessError::NoKey(path) => {
                write!(f, "{} holds no private key: give one in PEM, without a passphrase", path.display())
            }
            AccessError::Password(path) => {
                write!(f, "{} must hold the password on one line, and nothing else", path.display())
            }
            AccessError::Combination(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for AccessError {}

impl EtcdAccess {
    /// Reads and checks the files for the etcd at `place`, each by itself and together with the endpoints' schemes.
    pub fn read(files: &EtcdFiles, place: &EtcdPrefix) -> Result<EtcdAccess, AccessError> {
        check_combination(files, place)?;
        let certificates = |path: &Option<PathBuf>| path.as_deref().map_or(Ok(Vec::new()), read_certificates);
        let secret = |path: &Path, bytes_max| read_secret_file(path, bytes_max).map_err(AccessError::Secret);
        let mut secrets = Secrets {
            ca: certificates(&files.ca_file)?,
            chain: certificates(&files.cert_file)?,
            ..Secrets::default()
        };
        if let Some(path) = &files.key_file {
            secrets.key = secret(path, KEY_BYTES_MAX)?;
            let key = PrivateKeyDer::from_pem_slice(secrets.key.as_bytes());
            let key = key.map_err(|_| AccessError::NoKey(path.clone()))?;
            CertifiedKey::from_der(certificates_of(&secrets.chain), key, &default_provider())
                .map_err(|error| AccessError::Key(path.clone(), error))?;
        }
        if let (Some(user), Some(path)) = (&files.user, &files.password_file) {
            let text = secret(path, PASSWORD_BYTES_MAX)?;
            let line = text.strip_suffix('\n').unwrap_or(&text);
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.is_empty() || line.contains('\n') {
                return Err(AccessError::Password(path.clone()));
            }
            secrets.login = Some((user.clone(), Zeroizing::new(line.to_owned())));
        }
        Ok(EtcdAccess(Arc::new(secrets)))
    }

    pub(crate) fn login(&self) -> Option<(&str, &str)> {
        self.0.login.as_ref().map(|(user, password)| (user.as_str(), password.as_str()))
    }

    /// The TLS configuration. Ignores parse errors, because [`read`](Self::read) has checked the files.
    pub(crate) fn tls(&self) -> TlsConfig {
        let parse = |pem: &[u8]| -> Vec<Certificate<'static>> {
            certificates_of(pem).iter().map(|der| Certificate::from_der(der).to_owned()).collect()
        };
        let key = PrivateKey::from_pem(self.0.key.as_bytes()).ok();
        TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(parse(&self.0.ca))))
            .client_cert(key.map(|key| ClientCert::new_with_certs(&parse(&self.0.chain), key)))
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
            .build()
    }
}

/// Prints no secrets.
impl fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdAccess")
            .field("user", &self.login().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

fn check_combination(files: &EtcdFiles, place: &EtcdPrefix) -> Result<(), AccessError> {
    let (any_http, any_https) = (place.has_scheme("http"), place.has_scheme("https"));
    let problems = [
        (
            any_https && files.ca_file.is_none(),
            "https to etcd needs the certificate of the authority that issued etcd's: give ca_file in [etcd] \
             (--etcd-ca-file); for public authorities /etc/ssl/certs/ca-certificates.crt",
        ),
        (
            !any_https && (files.ca_file.is_some() || files.cert_file.is_some() || files.key_file.is_some()),
            "certificates are used with https only: write etcd:https://HOST:PORT/PREFIX/",
        ),
        (
            files.cert_file.is_some() != files.key_file.is_some(),
            "a client certificate and its private key belong together: give cert_file and key_file in [etcd] \
             (--etcd-cert-file, --etcd-key-file)",
        ),
        (
            files.user.is_some() != files.password_file.is_some(),
            "a user and a password belong together: give user and password_file in [etcd] (--etcd-user, \
             --etcd-password-file)",
        ),
        (
            any_http && files.password_file.is_some(),
            "a password would be sent to etcd in clear text: write https:// for each endpoint",
        ),
    ];
    problems
        .iter()
        .find(|(is_wrong, _)| *is_wrong)
        .map_or(Ok(()), |(_, message)| Err(AccessError::Combination(message)))
}

fn read_certificates(path: &Path) -> Result<Vec<u8>, AccessError> {
    let read = || {
        // Opening a pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let mut pem = Vec::new();
        File::open(path)?.take(CERTIFICATES_BYTES_MAX as u64 + 1).read_to_end(&mut pem)?;
        if pem.len() > CERTIFICATES_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long for certificates"));
        }
        Ok(pem)
    };
    let pem = read().map_err(|error| AccessError::Read(path.to_owned(), error))?;
    let (usable, _) = RootCertStore::empty().add_parsable_certificates(certificates_of(&pem));
    if usable == 0 { Err(AccessError::NoCertificate(path.to_owned())) } else { Ok(pem) }
}

fn certificates_of(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}
