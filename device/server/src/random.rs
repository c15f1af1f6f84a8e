//! Random numbers of the system.

use std::io::Read;

use anyhow::Context;

use crate::tunnel::key::{NONCE_SIZE, Nonce};

/// The system's random numbers.
pub(crate) fn random() -> anyhow::Result<Box<dyn FnMut() -> Nonce + Send>> {
    let path = "/dev/urandom";
    let mut file = std::fs::File::open(path).context(path)?;
    let mut probe: Nonce = [0; NONCE_SIZE];
    file.read_exact(&mut probe).context(path)?;
    Ok(Box::new(move || {
        let mut nonce: Nonce = [0; NONCE_SIZE];
        if let Err(e) = file.read_exact(&mut nonce) {
            // Never a number that was used: without one no session can begin, so the process must not go on.
            panic!("{path}: {e}");
        }
        nonce
    }))
}
