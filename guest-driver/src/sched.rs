//! Elements that queues are scheduled by: nodes, and groups of queues below them (`mlx5dv_sched_node_create(3)`).

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use hca_spec::caps::object_type;
use hca_spec::sched::{HIERARCHY_NIC, SchedulingElement, element, field};

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
}

fn described(leaf: bool, rate: u32) -> SchedulingElement {
    let mut input = SchedulingElement::new();
    input.set(SchedulingElement::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
    let kind = if leaf { element::QUEUE_GROUP } else { element::TSAR };
    input.set(SchedulingElement::ELEMENT_TYPE, kind).set(SchedulingElement::MAX_AVERAGE_BW, rate);
    input
}
