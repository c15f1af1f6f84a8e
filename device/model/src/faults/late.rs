//! What comes late on script waits in the server's memory, however long that takes: it has a bound.

use std::sync::Arc;

/// As many of a kind come late at an adapter at once.
const MOST: usize = 4096;

/// Places of what comes late. A place is free again when what has it is gone: when it has come, and when nobody waits for it any
/// more, because its function was reset.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<()>);

/// A place, as long as it is kept.
#[derive(Debug)]
pub(crate) struct Place(Arc<()>);

impl Place {
    /// What had it has come.
    pub(crate) fn free(self) {
        let Self(counted) = self;
        drop(counted);
    }
}

impl Places {
    /// Takes a place. `None`: all are taken.
    pub(crate) fn take(&self) -> Option<Place> {
        (Arc::strong_count(&self.0) <= MOST).then(|| Place(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_come_late() {
        let places = Places::default();
        let mut taken: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(taken.len(), MOST);
        drop(taken.pop());
        taken.extend(places.take());
        assert!(taken.len() == MOST && places.take().is_none());
        assert!(Places::default().take().is_some());
    }
}
