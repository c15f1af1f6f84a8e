//! Where all objects of a function go at once.
//!
//! Letting go of them takes as long as there are objects: a second for some gigabytes. Whoever runs the adapter may have that
//! done elsewhere, so that one command or one reset stays as short as any other.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What somebody else drops.
pub type Burden = Box<dyn Any + Send>;

/// Who drops what is not needed any more. By default whoever does not need it, at once.
#[derive(Clone, Default)]
pub struct Disposal(Option<Arc<dyn Fn(Burden) + Send + Sync>>);

impl Disposal {
    /// Gives everything to `take`, which returns soon.
    pub fn by(take: impl Fn(Burden) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Lets go of it.
    pub fn give(&self, what: impl Any + Send) {
        match &self.0 {
            Some(take) => take(Box::new(what)),
            None => drop(what),
        }
    }
}

impl fmt::Debug for Disposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "elsewhere" } else { "at once" })
    }
}
