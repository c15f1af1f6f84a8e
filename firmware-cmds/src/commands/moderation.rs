//! How often interrupts come: the least time between two of a vector.
//!
//! Source: PRM "CONFIG_INT_MODERATION"; illumos' mlxcx driver for the modifiers.

use hca_spec::cmd::IntModeration;

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;

/// CONFIG_INT_MODERATION op_mod: sets the time.
const WRITE: u32 = 0;
/// CONFIG_INT_MODERATION op_mod: tells it.
const READ: u32 = 1;

pub(super) fn config(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const VECTOR: Failure =
        bad_param("CONFIG_INT_MODERATION: int_vector: the adapter has no such MSI-X vector");
    const MODIFIER: Failure = bad_param("CONFIG_INT_MODERATION: op_mod must be 0 (write) or 1 (read)");
    let config = call.view::<IntModeration>()?;
    let (vector, vectors) = (config.get(IntModeration::INT_VECTOR), fw.personality().pci.msix_vectors);
    if vector >= u32::from(vectors) {
        return Err(VECTOR.got(vector).limit(vectors - 1));
    }
    let vector = vector as u16;
    match call.op_mod {
        WRITE => {
            match config.get(IntModeration::MIN_DELAY) {
                0 => fw.interrupt_delays.remove(&vector),
                delay => fw.interrupt_delays.insert(vector, delay as u16),
            };
            Ok(done())
        }
        READ => {
            let mut out = IntModeration::new();
            out.set(IntModeration::INT_VECTOR, vector.into());
            Ok(reply(out.set(IntModeration::MIN_DELAY, fw.interrupt_delay(vector).into())))
        }
        other => Err(MODIFIER.got(other).limit(READ)),
    }
}

/// CONFIG_INT_MODERATION: 100 us.
pub(super) fn template(_: &Fixture) -> Vec<u8> {
    let mut config = IntModeration::new();
    config.set(IntModeration::INT_VECTOR, 2).set(IntModeration::MIN_DELAY, 100);
    config.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::{Opcode, Status};

    #[test]
    fn times_are_set_told_and_forgotten() {
        let mut b = Bench::initialized();
        let config = |b: &mut Bench, op_mod, vector, delay| {
            let mut config = IntModeration::new();
            config.set(IntModeration::INT_VECTOR, vector).set(IntModeration::MIN_DELAY, delay);
            b.run(Opcode::ConfigIntModeration, op_mod, &config.bytes()[8..], 16)
        };
        assert_eq!(config(&mut b, WRITE, 3, 0xfff).status(), Status::Ok);
        assert_eq!((b.fw.interrupt_delay(3), b.fw.interrupt_delay(2)), (0xfff, 0));
        let told = config(&mut b, READ, 3, 7);
        assert_eq!(IntModeration::from_prefix_or_zero(&told.output).get(IntModeration::MIN_DELAY), 0xfff);
        assert_eq!(config(&mut b, WRITE, 3, 0).status(), Status::Ok);
        assert_eq!(b.fw.interrupt_delay(3), 0);
        let vectors = b.fw.personality().pci.msix_vectors.into();
        assert_eq!(config(&mut b, WRITE, vectors, 1).status(), Status::BadParam);
        assert_eq!(config(&mut b, 2, 0, 1).status(), Status::BadParam);
        assert_eq!(config(&mut b, WRITE, 0, 9).status(), Status::Ok);
        b.ok(Opcode::DisableHca, 0);
        assert_eq!(b.fw.interrupt_delay(0), 0);
    }
}
