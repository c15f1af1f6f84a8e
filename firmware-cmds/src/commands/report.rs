//! Objects as their own QUERY commands report them, for whoever looks on: nothing is changed, and no state is needed.

use std::cell::Cell;

use hca_spec::command::{InHeader, Opcode};
use hca_spec::put_be32;

use super::row::{Action, Call, Handler};
use super::table::TABLE;
use crate::firmware::Firmware;
use crate::list::List;
use crate::object::Kind;

impl Firmware {
    /// What the QUERY command of a kind of object answers for that number: its opcode, and its output, header included.
    /// `None`: there is no such object, or no such command.
    pub fn report(&self, kind: Kind, number: u32) -> Option<(Opcode, Vec<u8>)> {
        let is_its = |action| action == Action::Query;
        let command = TABLE
            .iter()
            .find(|command| command.object.is_some_and(|of| of.kind == kind && is_its(of.action)))?;
        let Handler::ReadOnly(handler) = &command.handler else { return None };
        let mut header = InHeader::new();
        header.set(InHeader::OPCODE, command.opcode as u32);
        let mut input = vec![0; command.input.max(InHeader::SIZE)];
        input.iter_mut().zip(header.bytes()).for_each(|(to, from)| *to = *from);
        put_be32(&mut input, command.object?.at, number & kind.number_mask());
        let call = Call {
            command,
            op_mod: 0,
            input: &input,
            kept: &Cell::new(List::default()),
            kept_len: 0,
            user_pages: None,
            output_len: command.output,
            reaches: &|_| true,
        };
        handler(self, &call).ok().map(|output| (command.opcode, output))
    }
}
