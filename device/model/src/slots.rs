//! The hardware's own moving parts of an object, kept by the object's number.

/// A sparse array by object number.
#[derive(Debug)]
pub(crate) struct Slots<T>(Vec<Option<Box<T>>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.0.get(number as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0.get_mut(number as usize)?.as_deref_mut()
    }

    /// Stores `value`; numbers come from the firmware's tables and are bounded by their capacity.
    pub(crate) fn insert(&mut self, number: u32, value: T) {
        let index = number as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Some(Box::new(value));
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.0.get_mut(number as usize)?.take().map(|b| *b)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.0.iter_mut().enumerate().filter_map(|(n, s)| Some((n as u32, s.as_deref_mut()?)))
    }

    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}
