//! A control message as the bytes of a packet: reads and changes single fields in place.

use core::borrow::{Borrow, BorrowMut};
use core::ops::Range;

use super::{
    Endpoint, FLAG_FROM_SWITCH, FlowState, Kind, MESSAGE_BYTES, MessageError, SWITCH_MAGIC, SWITCH_VERSION,
    Site, Status, TAG_BYTES, field,
};
use crate::packet::ethernet::Mac;

/// A message of 128 bytes that begins with the magic. Nothing else is checked: getters return what the bytes say, and
/// a setter changes the bytes of its field only.
///
/// `B` is `[u8; 128]`, or a reference to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<B> {
    bytes: B,
}

impl<'a> View<&'a [u8; MESSAGE_BYTES]> {
    /// Views the payload of a UDP datagram.
    ///
    /// # Errors
    /// The length or the magic is wrong.
    #[inline]
    pub fn of(payload: &'a [u8]) -> Result<Self, MessageError> {
        let length = payload.len();
        View::new(payload.try_into().map_err(|_| MessageError::Length(length))?)
    }
}

impl<'a> View<&'a mut [u8; MESSAGE_BYTES]> {
    /// Views the payload of a UDP datagram in order to change it.
    ///
    /// # Errors
    /// The length or the magic is wrong.
    #[inline]
    pub fn of_mut(payload: &'a mut [u8]) -> Result<Self, MessageError> {
        let length = payload.len();
        View::new(payload.try_into().map_err(|_| MessageError::Length(length))?)
    }
}

impl View<[u8; MESSAGE_BYTES]> {
    /// A new message of this kind: magic, version and kind; everything else is zero.
    pub fn blank(kind: Kind) -> Self {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[field::MAGIC].copy_from_slice(&SWITCH_MAGIC);
        bytes[field::VERSION] = SWITCH_VERSION;
        bytes[field::KIND] = kind.code();
        View { bytes }
    }
}

impl<B: Borrow<[u8; MESSAGE_BYTES]>> View<B> {
    /// # Errors
    /// The magic is wrong.
    #[inline]
    pub fn new(bytes: B) -> Result<View<B>, MessageError> {
        if bytes.borrow()[field::MAGIC] == SWITCH_MAGIC {
            Ok(View { bytes })
        } else {
            Err(MessageError::Magic)
        }
    }

    /// The message's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; MESSAGE_BYTES] {
        self.bytes.borrow()
    }

    /// What the view was made of.
    pub fn into_inner(self) -> B {
        self.bytes
    }

    /// The version.
    #[inline]
    pub fn version(&self) -> u8 {
        self.bytes()[field::VERSION]
    }

    /// The kind.
    ///
    /// # Errors
    /// The kind is unknown.
    #[inline]
    pub fn kind(&self) -> Result<Kind, MessageError> {
        self.bytes()[field::KIND].try_into()
    }

    /// All flags.
    #[inline]
    pub fn flags(&self) -> u16 {
        u16::from_be_bytes(self.array(field::FLAGS))
    }

    /// Whether the message is an answer or a relayed message, according to its flags.
    #[inline]
    pub fn is_from_switch(&self) -> bool {
        self.flags() & FLAG_FROM_SWITCH != 0
    }

    /// The sender's id; valid ids are below 256.
    #[inline]
    pub fn sender(&self) -> u32 {
        u32::from_be_bytes(self.array(field::SENDER))
    }

    /// The sequence number.
    #[inline]
    pub fn sequence(&self) -> u64 {
        u64::from_be_bytes(self.array(field::SEQUENCE))
    }

    /// The generation.
    #[inline]
    pub fn generation(&self) -> u64 {
        u64::from_be_bytes(self.array(field::GENERATION))
    }

    /// The address family: 4, 6, or 0 without addresses.
    #[inline]
    pub fn family(&self) -> u8 {
        self.bytes()[field::FAMILY]
    }

    /// The reserved bytes.
    #[inline]
    pub fn reserved(&self) -> [u8; 3] {
        self.array(field::RESERVED)
    }

    /// The client's end of the flow; zero without a client.
    #[inline]
    pub fn client(&self) -> Endpoint {
        self.endpoint(field::CLIENT_ADDRESS, field::CLIENT_PORT)
    }

    /// The service's end of the flow; zero without a service.
    #[inline]
    pub fn service(&self) -> Endpoint {
        self.endpoint(field::SERVICE_ADDRESS, field::SERVICE_PORT)
    }

    /// The owner or the target; `None` if address, port and Ethernet address are zero.
    #[inline]
    pub fn owner(&self) -> Option<Site> {
        Site::new(self.endpoint(field::OWNER_ADDRESS, field::OWNER_PORT), Mac(self.array(field::OWNER_MAC)))
    }

    /// The load.
    #[inline]
    pub fn load(&self) -> u32 {
        u32::from_be_bytes(self.array(field::LOAD))
    }

    /// The lifetime in milliseconds.
    #[inline]
    pub fn lifetime_ms(&self) -> u32 {
        u32::from_be_bytes(self.array(field::LIFETIME_MS))
    }

    /// The status.
    ///
    /// # Errors
    /// The status is unknown.
    #[inline]
    pub fn status(&self) -> Result<Status, MessageError> {
        self.bytes()[field::STATUS].try_into()
    }

    /// The state of the flow.
    ///
    /// # Errors
    /// The state is unknown.
    #[inline]
    pub fn state(&self) -> Result<FlowState, MessageError> {
        self.bytes()[field::STATE].try_into()
    }

    /// The number of connections that the owner can still import.
    #[inline]
    pub fn free_places(&self) -> u32 {
        u32::from_be_bytes(self.array(field::FREE_PLACES))
    }

    /// The owner's weight.
    #[inline]
    pub fn weight(&self) -> u16 {
        u16::from_be_bytes(self.array(field::WEIGHT))
    }

    /// The epoch of the switch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        u64::from_be_bytes(self.array(field::EPOCH))
    }

    /// The bytes that the tag covers.
    #[inline]
    pub fn tagged(&self) -> &[u8] {
        &self.bytes()[field::TAGGED]
    }

    /// The tag.
    #[inline]
    pub fn tag(&self) -> [u8; TAG_BYTES] {
        self.array(field::TAG)
    }

    fn endpoint(&self, address: Range<usize>, port: Range<usize>) -> Endpoint {
        Endpoint::new(self.array(address), u16::from_be_bytes(self.array(port)))
    }

    /// The bytes of a field. `N` must be the field's length.
    fn array<const N: usize>(&self, field: Range<usize>) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes()[field]);
        out
    }
}

impl<B: BorrowMut<[u8; MESSAGE_BYTES]>> View<B> {
    /// Changes all flags.
    #[inline]
    pub fn set_flags(&mut self, flags: u16) {
        self.set(field::FLAGS, flags.to_be_bytes());
    }

    /// Changes the sender.
    #[inline]
    pub fn set_sender(&mut self, sender: u32) {
        self.set(field::SENDER, sender.to_be_bytes());
    }

    /// Changes the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u64) {
        self.set(field::SEQUENCE, sequence.to_be_bytes());
    }

    /// Changes the generation.
    #[inline]
    pub fn set_generation(&mut self, generation: u64) {
        self.set(field::GENERATION, generation.to_be_bytes());
    }

    /// Changes the address family.
    #[inline]
    pub fn set_family(&mut self, family: u8) {
        self.set(field::FAMILY..field::FAMILY + 1, [family]);
    }

    /// Changes the client's address and port.
    #[inline]
    pub fn set_client(&mut self, client: Endpoint) {
        self.set(field::CLIENT_ADDRESS, client.address());
        self.set(field::CLIENT_PORT, client.port().to_be_bytes());
    }

    /// Changes the service's address and port.
    #[inline]
    pub fn set_service(&mut self, service: Endpoint) {
        self.set(field::SERVICE_ADDRESS, service.address());
        self.set(field::SERVICE_PORT, service.port().to_be_bytes());
    }

    /// Changes the owner's address, port and Ethernet address; `None` makes them zero.
    #[inline]
    pub fn set_owner(&mut self, owner: Option<Site>) {
        let (endpoint, mac) = owner.map_or((Endpoint::ZERO, Mac::ZERO), |site| (site.endpoint(), site.mac()));
        self.set(field::OWNER_ADDRESS, endpoint.address());
        self.set(field::OWNER_PORT, endpoint.port().to_be_bytes());
        self.set(field::OWNER_MAC, mac.0);
    }

    /// Changes the load.
    #[inline]
    pub fn set_load(&mut self, load: u32) {
        self.set(field::LOAD, load.to_be_bytes());
    }

    /// Changes the lifetime.
    #[inline]
    pub fn set_lifetime_ms(&mut self, lifetime_ms: u32) {
        self.set(field::LIFETIME_MS, lifetime_ms.to_be_bytes());
    }

    /// Changes the status.
    #[inline]
    pub fn set_status(&mut self, status: Status) {
        self.set(field::STATUS..field::STATUS + 1, [status.code()]);
    }

    /// Changes the state of the flow.
    #[inline]
    pub fn set_state(&mut self, state: FlowState) {
        self.set(field::STATE..field::STATE + 1, [state.code()]);
    }

    /// Changes the number of connections that the owner can still import.
    #[inline]
    pub fn set_free_places(&mut self, free_places: u32) {
        self.set(field::FREE_PLACES, free_places.to_be_bytes());
    }

    /// Changes the owner's weight.
    #[inline]
    pub fn set_weight(&mut self, weight: u16) {
        self.set(field::WEIGHT, weight.to_be_bytes());
    }

    /// Changes the epoch.
    #[inline]
    pub fn set_epoch(&mut self, epoch: u64) {
        self.set(field::EPOCH, epoch.to_be_bytes());
    }

    /// Changes the tag. Every later change of another field makes the tag invalid.
    #[inline]
    pub fn set_tag(&mut self, tag: [u8; TAG_BYTES]) {
        self.set(field::TAG, tag);
    }

    /// `N` must be the field's length.
    fn set<const N: usize>(&mut self, field: Range<usize>, value: [u8; N]) {
        self.bytes.borrow_mut()[field].copy_from_slice(&value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wrong_length_or_magic_is_rejected() {
        let valid = *View::blank(Kind::Get).bytes();
        assert!(View::of(&valid).is_ok());
        assert_eq!(View::of(&valid[..127]), Err(MessageError::Length(127)));
        assert_eq!(View::of(&[valid, valid].concat()), Err(MessageError::Length(256)));
        assert_eq!(View::of_mut(&mut []), Err(MessageError::Length(0)));
        for offset in field::MAGIC {
            let mut altered = valid;
            altered[offset] ^= 1;
            assert_eq!(View::of(&altered), Err(MessageError::Magic));
        }
    }

    #[test]
    fn fields_follow_each_other_without_a_gap() {
        let one = |offset| offset..offset + 1;
        let fields = [
            field::MAGIC,
            one(field::VERSION),
            one(field::KIND),
            field::FLAGS,
            field::SENDER,
            field::SEQUENCE,
            field::GENERATION,
            one(field::FAMILY),
            field::RESERVED,
            field::CLIENT_ADDRESS,
            field::CLIENT_PORT,
            field::SERVICE_ADDRESS,
            field::SERVICE_PORT,
            field::OWNER_ADDRESS,
            field::OWNER_PORT,
            field::OWNER_MAC,
            field::LOAD,
            field::LIFETIME_MS,
            one(field::STATUS),
            one(field::STATE),
            field::FREE_PLACES,
            field::WEIGHT,
            field::EPOCH,
            field::TAG,
        ];
        let end = fields.into_iter().fold(0, |end, field| {
            assert_eq!(field.start, end);
            field.end
        });
        assert_eq!(end, MESSAGE_BYTES);
    }

    /// Applies a setter to a message in the middle of a packet. Returns what `read` then reads, after a check that the
    /// setter has changed nothing outside of its field.
    fn changed<T>(
        bytes: &[u8; MESSAGE_BYTES],
        field: Range<usize>,
        set: impl FnOnce(&mut View<&mut [u8; MESSAGE_BYTES]>),
        read: impl FnOnce(&View<&[u8; MESSAGE_BYTES]>) -> T,
    ) -> T {
        let mut packet = [&[0xaa; 42][..], bytes, &[0xbb; 4]].concat();
        let before = packet.clone();
        set(&mut View::of_mut(&mut packet[42..42 + MESSAGE_BYTES]).unwrap());
        for (offset, (now, then)) in packet.iter().zip(&before).enumerate() {
            let is_inside = field.contains(&offset.wrapping_sub(42));
            assert!(is_inside || now == then, "offset {offset} should not change");
        }
        read(&View::of(&packet[42..42 + MESSAGE_BYTES]).unwrap())
    }

    fn any_message() -> impl Strategy<Value = [u8; MESSAGE_BYTES]> {
        proptest::array::uniform::<_, MESSAGE_BYTES>(any::<u8>()).prop_map(|mut bytes| {
            bytes[field::MAGIC].copy_from_slice(&SWITCH_MAGIC);
            bytes
        })
    }

    proptest! {
        #[test]
        fn a_setter_changes_its_number_and_nothing_else(bytes in any_message(), word: u64, half: u32, short: u16) {
            let b = &bytes;
            prop_assert_eq!(changed(b, field::FLAGS, |m| m.set_flags(short), |m| m.flags()), short);
            prop_assert_eq!(changed(b, field::SENDER, |m| m.set_sender(half), |m| m.sender()), half);
            prop_assert_eq!(changed(b, field::SEQUENCE, |m| m.set_sequence(word), |m| m.sequence()), word);
            prop_assert_eq!(changed(b, field::GENERATION, |m| m.set_generation(word), |m| m.generation()), word);
            prop_assert_eq!(changed(b, field::LOAD, |m| m.set_load(half), |m| m.load()), half);
            prop_assert_eq!(changed(b, field::LIFETIME_MS, |m| m.set_lifetime_ms(half), |m| m.lifetime_ms()), half);
            prop_assert_eq!(changed(b, field::FREE_PLACES, |m| m.set_free_places(half), |m| m.free_places()), half);
            prop_assert_eq!(changed(b, field::WEIGHT, |m| m.set_weight(short), |m| m.weight()), short);
            prop_assert_eq!(changed(b, field::EPOCH, |m| m.set_epoch(word), |m| m.epoch()), word);
            let tag = word.to_le_bytes();
            prop_assert_eq!(changed(b, field::TAG, |m| m.set_tag(tag), |m| m.tag()), tag);
        }

        #[test]
        fn a_setter_changes_its_address_or_code_and_nothing_else(
            bytes in any_message(), address: [u8; 16], port: u16, mac: [u8; 6], code: u8,
        ) {
            let b = &bytes;
            let endpoint = Endpoint::new(address, port);
            let client = field::CLIENT_ADDRESS.start..field::CLIENT_PORT.end;
            prop_assert_eq!(changed(b, client, |m| m.set_client(endpoint), |m| m.client()), endpoint);
            let service = field::SERVICE_ADDRESS.start..field::SERVICE_PORT.end;
            prop_assert_eq!(changed(b, service, |m| m.set_service(endpoint), |m| m.service()), endpoint);
            let owner = field::OWNER_ADDRESS.start..field::OWNER_MAC.end;
            for site in [Site::new(endpoint, Mac(mac)), None] {
                prop_assert_eq!(changed(b, owner.clone(), |m| m.set_owner(site), |m| m.owner()), site);
            }
            let family = field::FAMILY..field::RESERVED.start;
            prop_assert_eq!(changed(b, family, |m| m.set_family(code), |m| m.family()), code);
            for status in Status::ALL {
                let status_byte = field::STATUS..field::STATE;
                prop_assert_eq!(changed(b, status_byte, |m| m.set_status(status), |m| m.status()), Ok(status));
            }
            for state in FlowState::ALL {
                let state_byte = field::STATE..field::FREE_PLACES.start;
                prop_assert_eq!(changed(b, state_byte, |m| m.set_state(state), |m| m.state()), Ok(state));
            }
        }
    }
}
