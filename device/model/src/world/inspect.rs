//! Objects looked at.

use super::World;
use crate::ground::node::FunctionRef;
use crate::inspect::{Part, What, inspect};

impl World {
    /// Looks at an object of a function, its command queue, pages or a port, and changes nothing.
    ///
    /// # Errors
    /// There is no such object, in words, with those that there are.
    pub fn inspect(&self, at: impl Into<FunctionRef>, what: What) -> Result<Vec<Part>, String> {
        let at = at.into();
        let hca = self.hcas.get(at.hca.0).ok_or("there is no such adapter")?;
        let function = hca.function(at.function).ok_or("there is no such function")?;
        inspect(hca, function, what)
    }
}
