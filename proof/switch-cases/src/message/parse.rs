//! Fields of a control message: `flow alice:40000 web generation g3 owner B@web-b lifetime 500ms`.
//!
//! | field | meaning |
//! |---|---|
//! | `flow CLIENT SERVICE` | client's and service's address and port; sets the family |
//! | `service SERVICE` | only the service |
//! | `generation N` | a number; `g3` is the third that the switch gives: epoch + 3 |
//! | `owner HOST@PLACE` | a site: the host's MAC at the address and port of a place; `none` for zeros |
//! | `load N`, `free N`, `weight N`, `lifetime TIME` | numbers |
//! | `status NAME`, `state NAME` | by name, or as numbers |
//! | `sequence N`, `epoch N`, `epoch other`, `sender N`, `version N`, `kind N`, `flags N`, `family N` | header fields |
//! | `magic wrong`, `tag wrong`, `tag by HOST`, `reserved N` | altered bytes; a tag with the key of another server |

use super::{Message, STATES, STATUSES};
use crate::error::TextError;
use crate::mac::Mac;
use crate::setup::Setup;
use crate::text::Line;

impl Message {
    /// Reads fields up to the end of the part.
    pub(crate) fn read_fields(&mut self, setup: &Setup, line: &mut Line<'_>) -> Result<(), TextError> {
        while let Some(text) = line.peek() {
            if matches!(text, "," | "->") {
                break;
            }
            self.read_field(setup, line)?;
        }
        Ok(())
    }

    fn read_field(&mut self, setup: &Setup, line: &mut Line<'_>) -> Result<(), TextError> {
        let field = line.word("a field")?;
        match field.text {
            "flow" => {
                let client = line.word("a client")?;
                let service = setup.read_endpoint(line, false)?;
                let at = setup.endpoint(client.text, service.is_ipv6());
                self.client = Some(at.ok_or_else(|| client.error("not an address and port"))?);
                self.service = Some(service);
                self.set_family();
            }
            "service" => {
                self.service = Some(setup.read_endpoint(line, false)?);
                self.set_family();
            }
            "generation" => self.generation = read_generation(setup, line)?,
            "owner" => {
                (self.owner, self.mac) = if line.accept("none") {
                    (None, Mac::default())
                } else {
                    let site = read_site(setup, line)?;
                    (Some(site.0), site.1)
                };
            }
            "load" => self.load = line.number("a load")?,
            "free" => self.free = line.number("a number of places")?,
            "weight" => self.weight = line.number("a weight")?,
            "lifetime" => {
                let ms = line.time("a time")? / 1_000_000;
                self.lifetime_ms = u32::try_from(ms).map_err(|_| field.error("at most 49 days"))?;
            }
            "status" => self.status = named(line, &STATUSES, "a status")?,
            "state" => self.state = named(line, &STATES, "a state")?,
            "sequence" => self.sequence = line.number("a sequence number")?,
            "epoch" if line.accept("other") => self.epoch = setup.epoch ^ 1,
            "epoch" => self.epoch = line.number("an epoch")?,
            "sender" => self.sender = line.number("an id")?,
            "version" => self.version = line.number("a version")?,
            "kind" => self.kind = line.number("a kind")?,
            "flags" => self.flags = line.number("flags")?,
            "family" => self.family = line.number("a family")?,
            "reserved" => self.reserved[1] = line.number("a byte")?,
            "magic" => {
                line.expect("wrong")?;
                self.magic[7] ^= 1;
            }
            "tag" if line.accept("by") => {
                let host = line.word("a server")?;
                let server = setup.servers.get(host.text).ok_or_else(|| host.error("not a server"))?;
                self.key = server.key;
            }
            "tag" => {
                line.expect("wrong")?;
                self.tag_error = 1;
            }
            other => return Err(field.error(format!("unknown field `{other}` of a control message"))),
        }
        Ok(())
    }
}

/// Reads a generation: a number, or `g3` for the epoch + 3.
pub(crate) fn read_generation(setup: &Setup, line: &mut Line<'_>) -> Result<u64, TextError> {
    if let Some(count) =
        line.peek().and_then(|text| text.strip_prefix('g')).and_then(|digits| digits.parse().ok())
    {
        line.word("a generation")?;
        return Ok(setup.epoch.wrapping_add(count));
    }
    line.number("a generation: a number, or g1 for the epoch + 1")
}

/// Reads `HOST@PLACE`.
pub(crate) fn read_site(
    setup: &Setup,
    line: &mut Line<'_>,
) -> Result<(std::net::SocketAddr, Mac), TextError> {
    let word = line.word("a site")?;
    let site = word.text.split_once('@').and_then(|(host, place)| {
        let mac = setup.mac(host).or_else(|| host.parse().ok())?;
        Some((setup.endpoint(place, false)?, mac))
    });
    site.ok_or_else(|| {
        word.error(format!("`{}` is not a site: a host and a place, as in `B@web-b`", word.text))
    })
}

/// Reads one of these names, or a number.
pub(crate) fn named(line: &mut Line<'_>, names: &[(&str, u8)], what: &str) -> Result<u8, TextError> {
    if let Some((_, number)) = names.iter().find(|(name, _)| line.peek() == Some(*name)) {
        line.word(what)?;
        return Ok(*number);
    }
    let expected: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    line.number(&format!("{what}: {}", expected.join(", ")))
}
