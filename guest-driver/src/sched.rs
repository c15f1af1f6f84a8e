//! Elements that queues are scheduled by: nodes, and groups of queues below them (`mlx5dv_sched_node_create(3)`).

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use hca_spec::caps::object_type;
use hca_spec::cmd::{GeneralObjectIn, ObjectOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::sched::{HIERARCHY_NIC, SchedulingElement, element, field};

/// The kind of object stands where other commands have their modifier.
const KIND: u32 = object_type::SCHEDULING_ELEMENT;

impl<B: Bus> Hca<B> {
    /// Creates a node, or a group of queues. `parent` 0: none, which only a node can have; `rate` in Mb/s, 0: none. Returns its number.
    pub fn create_scheduling_element(&mut self, leaf: bool, parent: u32, rate: u32) -> Result<u32, Error> {
        let mut input = described(leaf, rate);
        input.set(SchedulingElement::PARENT_ELEMENT_ID, parent);
        let input = about(0, &input);
        let out = self.execute(Opcode::CreateGeneralObject, KIND, input, ObjectOut::SIZE)?;
        Ok(hca_spec::be32(&out, 8))
    }

    /// Changes the rate of an element.
    pub fn set_scheduling_rate(&mut self, number: u32, leaf: bool, rate: u32) -> Result<(), Error> {
        let mut input = described(leaf, rate);
        input.set(SchedulingElement::MODIFY_FIELD_SELECT, field::MAX_AVERAGE_BW);
        let input = about(number, &input);
        self.execute(Opcode::ModifyGeneralObject, KIND, input, OutHeader::SIZE).map(drop)
    }

    /// Destroys an element that nothing is below.
    pub fn destroy_scheduling_element(&mut self, number: u32) -> Result<(), Error> {
        let input = about(number, &SchedulingElement::new());
        self.execute(Opcode::DestroyGeneralObject, KIND, input, OutHeader::SIZE).map(drop)
    }
}

fn described(leaf: bool, rate: u32) -> SchedulingElement {
    let mut input = SchedulingElement::new();
    input.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    let kind = if leaf { element::QUEUE_GROUP } else { element::TSAR };
    input.set(SchedulingElement::ELEMENT_TYPE, kind).set(SchedulingElement::MAX_AVERAGE_BW, rate);
    input
}

/// The input of a command about the element of that number.
fn about(number: u32, element: &SchedulingElement) -> alloc::vec::Vec<u8> {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_ID, number);
    let mut input = element.bytes().to_vec();
    input.iter_mut().zip(head.bytes()).for_each(|(to, from)| *to = *from);
    input
}
