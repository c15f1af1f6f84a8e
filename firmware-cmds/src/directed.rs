//! Directed routes: SMPs that find their way by a list of ports, without LIDs or tables.
//!
//! A route may have a part routed by LID before it and one after it (DrSLID and DrDLID are then no permissive
//! LIDs); a node handles the SMP where the directed part begins, at each of its hops, and where it ends.
//!
//! Source: IBTA 14.2.2 (C14-5 to C14-13: the cases of an outbound and of a returning SMP).

use hca_spec::ids::Lid;
use hca_spec::mad::{INITIAL_PATH, Mad, PATH_SIZE, RETURN_PATH};

/// Longest route, in hops.
const MAX_HOPS: u32 = PATH_SIZE as u32 - 1;

/// Where an SMP goes from a node. Its hop pointer and return path are already what they have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// To this node's agent: a request at its end.
    Agent,
    /// To a manager on this node: a response at its end.
    Manager,
    /// Out by that port, with permissive LIDs. Whether there is such a port is for the caller to see.
    Port(u8),
    /// The directed part ended; on to that LID.
    Lid(Lid),
    /// Nowhere: hop count or pointer are impossible.
    Nowhere,
}

fn hop(mad: &Mad, path: usize, hop: u32) -> u8 {
    mad.bytes().get(path + hop as usize).copied().unwrap_or(0)
}

/// Moves an SMP that came by `in_port`, or a response that begins here, one step.
pub(crate) fn step(mad: &mut Mad, in_port: u8) -> Step {
    let (count, pointer) = (mad.get(Mad::HOP_COUNT), mad.get(Mad::HOP_POINTER));
    if count > MAX_HOPS || pointer > count + 1 {
        return Step::Nowhere;
    }
    if mad.get(Mad::DIRECTION) == 0 { outbound(mad, in_port, count, pointer) } else { back(mad, pointer) }
}

/// C14-9.
fn outbound(mad: &mut Mad, in_port: u8, count: u32, pointer: u32) -> Step {
    if pointer == count + 1 {
        // By LID from where the directed part ended.
        return Step::Agent;
    }
    if pointer > 0
        && let Some(slot) = mad.bytes_mut().get_mut(RETURN_PATH + pointer as usize)
    {
        *slot = in_port;
    }
    mad.set(Mad::HOP_POINTER, pointer + 1);
    let to = Lid(mad.get(Mad::DR_DLID) as u16);
    match pointer {
        _ if pointer < count => Step::Port(hop(mad, INITIAL_PATH, pointer + 1)),
        _ if to == Lid::PERMISSIVE => Step::Agent,
        _ => Step::Lid(to),
    }
}

/// C14-13.
fn back(mad: &mut Mad, pointer: u32) -> Step {
    let to = Lid(mad.get(Mad::DR_SLID) as u16);
    mad.set(Mad::HOP_POINTER, pointer.saturating_sub(1));
    match pointer {
        // By LID from where the directed part ended.
        0 => Step::Manager,
        2.. => Step::Port(hop(mad, RETURN_PATH, pointer - 1)),
        // A route of no hops begins and ends here.
        1 if to == Lid::PERMISSIVE => Step::Manager,
        1 => Step::Lid(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: u32 = 0xffff;

    fn smp(direction: u32, count: u32, pointer: u32, slid: u32, dlid: u32) -> Mad {
        let mut m = Mad::new();
        m.set(Mad::DIRECTION, direction).set(Mad::HOP_COUNT, count).set(Mad::HOP_POINTER, pointer);
        m.set(Mad::DR_SLID, slid).set(Mad::DR_DLID, dlid);
        for i in 0..PATH_SIZE {
            m.bytes_mut()[INITIAL_PATH + i] = 100 + i as u8;
            m.bytes_mut()[RETURN_PATH + i] = 200u8.wrapping_add(i as u8);
        }
        m
    }

    /// IBTA 14.2.2: the cases by direction, hop count, hop pointer, DrSLID, DrDLID: the step and the new pointer.
    #[test]
    fn every_case() {
        for (direction, count, pointer, slid, dlid, step_to, new) in [
            // C14-9: 1 the start after a part by LID, 2 on the way, 3 the end, 4 after it, 5 impossible.
            (0, 3, 0, 7, ANY, Step::Port(101), 1),
            (0, 3, 1, ANY, ANY, Step::Port(102), 2),
            (0, 3, 2, ANY, ANY, Step::Port(103), 3),
            (0, 3, 3, ANY, ANY, Step::Agent, 4),
            (0, 3, 3, ANY, 9, Step::Lid(Lid(9)), 4),
            (0, 0, 0, ANY, ANY, Step::Agent, 1),
            (0, 0, 0, 7, 9, Step::Lid(Lid(9)), 1),
            (0, 3, 4, ANY, 9, Step::Agent, 4),
            (0, 3, 5, ANY, ANY, Step::Nowhere, 5),
            (0, 63, 62, ANY, ANY, Step::Port(163), 63),
            (0, 63, 63, ANY, ANY, Step::Agent, 64),
            (0, 64, 1, ANY, ANY, Step::Nowhere, 1),
            (0, 255, 255, ANY, ANY, Step::Nowhere, 255),
            // C14-13: 1 the start, 2 on the way, 3 the end, 4 after it, 5 impossible.
            (1, 3, 4, ANY, ANY, Step::Port(203), 3),
            (1, 3, 3, ANY, ANY, Step::Port(202), 2),
            (1, 3, 2, ANY, ANY, Step::Port(201), 1),
            (1, 3, 1, ANY, ANY, Step::Manager, 0),
            (1, 3, 1, 7, ANY, Step::Lid(Lid(7)), 0),
            (1, 0, 1, 7, ANY, Step::Lid(Lid(7)), 0),
            (1, 3, 0, 7, ANY, Step::Manager, 0),
            (1, 3, 5, ANY, ANY, Step::Nowhere, 5),
            (1, 64, 2, ANY, ANY, Step::Nowhere, 2),
        ] {
            let mut m = smp(direction, count, pointer, slid, dlid);
            let before = m;
            let got = (step(&mut m, 9), m.get(Mad::HOP_POINTER));
            assert_eq!(got, (step_to, new), "D={direction} count={count} pointer={pointer}");
            let marked = direction == 0 && pointer > 0 && pointer <= count && count < 64;
            for i in 0..PATH_SIZE {
                let want = if marked && i == pointer as usize { 9 } else { before.bytes()[RETURN_PATH + i] };
                assert_eq!(m.bytes()[RETURN_PATH + i], want, "return path, hop {i}");
            }
        }
    }
}
