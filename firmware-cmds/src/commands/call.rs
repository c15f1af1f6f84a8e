//! What all handlers do with a command's input and output.

use hca_spec::be32;
use hca_spec::cmd;
use hca_spec::command::{OutHeader, Status};
use hca_spec::ids::UarIndex;
use hca_spec::mkc::MTT_ADDRESS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::row::{Action, Call, Outcome};
use crate::buffer::Buffer;
use crate::failure::{Failure, SHORT, bad_param};
use crate::firmware::Firmware;
use crate::object::{Kind, Object};

impl<'a> Call<'a> {
    /// The input as a command's layout.
    pub(super) fn view<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<&'a T, Failure> {
        T::ref_from_prefix(self.input).map(|(view, _)| view).map_err(|_| SHORT)
    }

    /// The object that the command is about, if it exists already.
    pub(super) fn target(&self) -> Option<Object> {
        let object = self.command.object.filter(|object| object.action != Action::Create)?;
        let number = be32(self.input, object.at) & object.kind.number_mask();
        Some(Object::new(object.kind, number))
    }

    /// The object that the command is about, by the command's own kind, if it exists already.
    pub(super) fn names(&self) -> Option<(Kind, u32)> {
        let target = self.target()?;
        Some((self.kind().unwrap_or(target.kind), target.number))
    }

    /// The number of the object that the command names.
    pub(super) fn number(&self) -> u32 {
        self.target().map_or(0, |object| object.number)
    }

    /// The kind of object that the command is about.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.command.object.map(|object| object.kind)
    }

    /// The list of pages or translations behind a CREATE_* or MODIFY_CQ input.
    pub(super) fn list(&self) -> &'a [u8] {
        let at = self.command.icm.list.unwrap_or(cmd::PAS_OFFSET);
        self.input.get(at..).unwrap_or_default()
    }

    /// A queue's memory: as many pages of the input's list as `len` bytes need.
    pub(super) fn buffer(&self, log_page_size: u32, page_offset: u32, len: u64) -> Result<Buffer, Failure> {
        const BAD_PAGE: Failure = bad_param("log_page_size: the queue's pages are larger than 2^40 bytes");
        const FEW: Failure = Failure::new(
            Status::BadInputLength,
            "pas: the page list is shorter than the queue (log_page_size, page_offset)",
        );
        const LOW: Failure = bad_param("pas: a page address must be a multiple of 4096");
        const MAX_SHIFT: u32 = 40;
        /// Rights of a page, which some drivers put there.
        const RIGHTS: u64 = 3;
        let shift = 12 + log_page_size;
        if shift > MAX_SHIFT {
            return Err(BAD_PAGE.got(log_page_size).limit(MAX_SHIFT - 12));
        }
        // The offset is given in 64ths of a page.
        let offset = u64::from(page_offset) << (shift - 6);
        let pages = (offset + len).div_ceil(1 << shift);
        let list = self.list();
        if pages > list.len() as u64 / 8 {
            return Err(FEW.got(list.len() as u64 / 8).least(pages));
        }
        let pages = addresses(list).take(pages as usize);
        if let Some(page) = pages.clone().find(|page| page & !(MTT_ADDRESS | RIGHTS) != 0) {
            return Err(LOW.got(page));
        }
        // A page of any size may begin at any multiple of 4096: offsets are added to its address (Snabb's driver has queues in pages
        // that are larger than its memory is aligned to).
        Buffer::new(pages.map(|page| page & MTT_ADDRESS).collect(), shift, offset, len).ok_or(FEW)
    }
}

/// The addresses of a list, each of 8 bytes. A list may have two million.
pub(super) fn addresses(list: &[u8]) -> impl ExactSizeIterator<Item = u64> + Clone {
    let (list, _) = list.as_chunks::<8>();
    list.iter().map(|address| u64::from_be_bytes(*address))
}

/// An output that only says "done".
pub(super) fn done() -> Vec<u8> {
    vec![0; OutHeader::SIZE]
}

/// An output that names the object that was made.
pub(super) fn named(number: u32) -> Outcome {
    Ok(cmd::ObjectOut::new().set(cmd::ObjectOut::NUMBER, number).bytes().to_vec())
}

/// An output as a command's layout.
pub(super) fn reply(out: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    out.as_bytes().to_vec()
}

/// Puts a page list behind a query's output; the caller cuts it to the room there is.
pub(super) fn with_pages(mut output: Vec<u8>, buffer: &Buffer) -> Vec<u8> {
    for page in buffer.pages() {
        output.extend_from_slice(&page.to_be_bytes());
    }
    output
}

/// Where a doorbell record lies: the low bits of its address mean nothing. A driver may give the address of the counter itself, which
/// for send queues is the record's second word (OpenBSD's mcx does).
pub(super) fn record(address: u64) -> u64 {
    address & !7
}

/// Whether the UAR page of a queue's doorbells is allocated.
pub(super) fn check_uar(fw: &Firmware, page: u32, none: Failure) -> Result<(), Failure> {
    match fw.icm.uars.get(UarIndex(page).0) {
        Some(_) => Ok(()),
        None => Err(none.got(page)),
    }
}
