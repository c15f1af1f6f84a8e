//! General objects: what their commands have in common, whatever the kind of the object.
//!
//! The kind stands where other commands have their modifier; behind the header follows what describes the object.

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use alloc::vec::Vec;
use hca_spec::cmd::{GeneralObjectIn, ObjectOut};
use hca_spec::command::{Opcode, OutHeader};

impl<B: Bus> Hca<B> {
    /// Creates an object of a kind ([`hca_spec::caps::object_type`]) as the input says, whose header is filled in. Returns its number.
    pub(crate) fn create_general_object(&mut self, kind: u32, input: Vec<u8>) -> Result<u32, Error> {
        let input = about(0, input);
        let out = self.execute(Opcode::CreateGeneralObject, kind, input, ObjectOut::SIZE)?;
        Ok(hca_spec::be32(&out, 8))
    }

    /// Changes what the input selects of an object.
    pub(crate) fn modify_general_object(
        &mut self,
        kind: u32,
        number: u32,
        input: Vec<u8>,
    ) -> Result<(), Error> {
        self.execute(Opcode::ModifyGeneralObject, kind, about(number, input), OutHeader::SIZE).map(drop)
    }

    /// Destroys an object.
    pub(crate) fn destroy_general_object(&mut self, kind: u32, number: u32) -> Result<(), Error> {
        let input = about(number, GeneralObjectIn::new().bytes().to_vec());
        self.execute(Opcode::DestroyGeneralObject, kind, input, OutHeader::SIZE).map(drop)
    }
}

/// The input of a command about the object of that number.
fn about(number: u32, mut input: Vec<u8>) -> Vec<u8> {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_ID, number);
    input.iter_mut().zip(head.bytes()).for_each(|(to, from)| *to = *from);
    input
}
