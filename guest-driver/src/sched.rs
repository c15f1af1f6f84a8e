//! Elements that queues are scheduled by: nodes, and groups of queues below them (`mlx5dv_sched_node_create(3)`).

use alloc::vec::Vec;

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use hca_spec::caps::object_type;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::sched::{
    CreateSchedulingElementIn, CreateSchedulingElementOut, HIERARCHY_NIC, ModifySchedulingElementIn,
    QuerySchedulingElementOut, SchedulingContext, SchedulingElement, SchedulingElementIn, element, field,
};

const KIND: u32 = object_type::SCHEDULING_ELEMENT;

impl<B: Bus> Hca<B> {
    /// Creates a node, or a group of queues. `parent` 0: none, which only a node can have; `rate` in Mb/s, 0: none. Returns its number.
    pub fn create_scheduling_element(&mut self, leaf: bool, parent: u32, rate: u32) -> Result<u32, Error> {
        self.create_scheduling_element_with(leaf, parent, (rate, 0))
    }

    /// The same with a weight among the children of its node; 0: the smallest.
    pub fn create_scheduling_element_with(
        &mut self,
        leaf: bool,
        parent: u32,
        (rate, weight): (u32, u32),
    ) -> Result<u32, Error> {
        let mut input = described(leaf, rate);
        input.set(SchedulingElement::PARENT_ELEMENT_ID, parent).set(SchedulingElement::BW_SHARE, weight);
        self.create_general_object(KIND, input.bytes().to_vec())
    }

    /// Changes the rate of an element.
    pub fn set_scheduling_rate(&mut self, number: u32, leaf: bool, rate: u32) -> Result<(), Error> {
        let mut input = described(leaf, rate);
        input.set(SchedulingElement::MODIFY_FIELD_SELECT, field::MAX_AVERAGE_BW);
        self.modify_general_object(KIND, number, input.bytes().to_vec())
    }

    /// Destroys an element that nothing is below.
    pub fn destroy_scheduling_element(&mut self, number: u32) -> Result<(), Error> {
        self.destroy_general_object(KIND, number)
    }

    /// As [`Hca::create_scheduling_element_with`], by the elements' own command.
    pub fn create_element(
        &mut self,
        leaf: bool,
        parent: u32,
        (rate, weight): (u32, u32),
    ) -> Result<u32, Error> {
        let mut input = CreateSchedulingElementIn::new();
        input.set(CreateSchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
        let context = input.context_mut();
        context.set(SchedulingContext::ELEMENT_TYPE, if leaf { element::QUEUE_GROUP } else { element::TSAR });
        context.set(SchedulingContext::PARENT_ELEMENT_ID, parent);
        context.set(SchedulingContext::BW_SHARE, weight).set(SchedulingContext::MAX_AVERAGE_BW, rate);
        let length = CreateSchedulingElementOut::SIZE;
        let out = self.execute(Opcode::CreateSchedulingElement, 0, input.bytes().to_vec(), length)?;
        let out = CreateSchedulingElementOut::from_prefix_or_zero(&out);
        Ok(out.get(CreateSchedulingElementOut::SCHEDULING_ELEMENT_ID))
    }

    /// Changes rate and weight of an element, by the elements' own command.
    pub fn modify_element(&mut self, number: u32, (rate, weight): (u32, u32)) -> Result<(), Error> {
        let mut input = ModifySchedulingElementIn::new();
        input.set(ModifySchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
        input.set(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID, number);
        let mask = field::BW_SHARE | field::MAX_AVERAGE_BW;
        input.set(ModifySchedulingElementIn::MODIFY_BITMASK, mask as u32);
        let context = input.context_mut();
        context.set(SchedulingContext::BW_SHARE, weight).set(SchedulingContext::MAX_AVERAGE_BW, rate);
        self.execute(Opcode::ModifySchedulingElement, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// What an element is, as the adapter tells it.
    pub fn query_element(&mut self, number: u32) -> Result<SchedulingContext, Error> {
        let length = QuerySchedulingElementOut::SIZE;
        let out = self.execute(Opcode::QuerySchedulingElement, 0, about(number), length)?;
        Ok(*QuerySchedulingElementOut::from_prefix_or_zero(&out).context())
    }

    /// Destroys an element that nothing is below, by the elements' own command.
    pub fn destroy_element(&mut self, number: u32) -> Result<(), Error> {
        self.execute(Opcode::DestroySchedulingElement, 0, about(number), OutHeader::SIZE).map(drop)
    }
}

/// An input that names an element.
fn about(number: u32) -> Vec<u8> {
    let mut input = SchedulingElementIn::new();
    input.set(SchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    input.set(SchedulingElementIn::SCHEDULING_ELEMENT_ID, number).bytes().to_vec()
}

fn described(leaf: bool, rate: u32) -> SchedulingElement {
    let mut input = SchedulingElement::new();
    input.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    let kind = if leaf { element::QUEUE_GROUP } else { element::TSAR };
    input.set(SchedulingElement::ELEMENT_TYPE, kind).set(SchedulingElement::MAX_AVERAGE_BW, rate);
    input
}
