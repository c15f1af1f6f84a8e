//! The memory of a queue.

/// A queue's memory: contiguous for the device, scattered in host pages (PRM "Virtually contiguous
/// buffers"). Offsets are in bytes from the queue's start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Buffer {
    pages: Pages,
    page_shift: u32,
    offset: u64,
    len: u64,
}

/// Most queues fit one page: a list of one is no allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pages {
    One([u64; 1]),
    List(Box<[u64]>),
}

impl Default for Pages {
    fn default() -> Self {
        Self::List(Box::default())
    }
}

impl Pages {
    #[inline]
    fn list(&self) -> &[u64] {
        match self {
            Self::One(page) => page,
            Self::List(pages) => pages,
        }
    }
}

impl Buffer {
    /// A buffer of `len` bytes in `pages` (DMA addresses) of `1 << page_shift` bytes, starting `offset`
    /// bytes into the first. `None` if the pages don't hold it.
    pub fn new(pages: Box<[u64]>, page_shift: u32, offset: u64, len: u64) -> Option<Self> {
        let room = (pages.len() as u64).checked_shl(page_shift)?;
        let end = offset.checked_add(len)?;
        (page_shift < 52 && room >> page_shift == pages.len() as u64 && end <= room).then_some(Self {
            pages: match *pages {
                [page] => Pages::One([page]),
                _ => Pages::List(pages),
            },
            page_shift,
            offset,
            len,
        })
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The DMA address of the byte at `offset`, and how many bytes follow it in the same page.
    #[inline]
    pub fn at(&self, offset: u64) -> Option<(u64, u64)> {
        if offset >= self.len {
            return None;
        }
        let o = self.offset + offset;
        let page = *self.pages().get((o >> self.page_shift) as usize)?;
        let in_page = o & ((1 << self.page_shift) - 1);
        Some((page.wrapping_add(in_page), ((1 << self.page_shift) - in_page).min(self.len - offset)))
    }

    /// The pages' DMA addresses.
    #[inline]
    pub fn pages(&self) -> &[u64] {
        self.pages.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_walks_pages() {
        let b = Buffer::new(Box::new([0x10000, 0x40000]), 12, 0x800, 0x1000).unwrap();
        assert_eq!(b.at(0), Some((0x10800, 0x800)));
        assert_eq!(b.at(0x7ff), Some((0x10fff, 1)));
        assert_eq!(b.at(0x800), Some((0x40000, 0x800)));
        assert_eq!(b.at(0x1000), None);
        assert!(Buffer::new(Box::new([0x10000]), 12, 0x800, 0x1000).is_none());
        assert!(Buffer::new(Box::new([0x10000]), 60, 0, 1).is_none());
    }
}
