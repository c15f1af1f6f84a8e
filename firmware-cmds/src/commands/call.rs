//! What all handlers do with a command's input and output.

use hca_spec::be32;
use hca_spec::cmd;
use hca_spec::command::{OutHeader, Status};
use hca_spec::ids::UarIndex;
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
        self.input.get(cmd::PAS_OFFSET..).unwrap_or_default()
    }

    /// A queue's memory: as many pages of the input's list as `len` bytes need.
    pub(super) fn buffer(&self, log_page_size: u32, page_offset: u32, len: u64) -> Result<Buffer, Failure> {
        const BAD_PAGE: Failure = bad_param("log_page_size: the queue's pages are larger than 2^40 bytes");
        const FEW: Failure = Failure::new(Status::BadInputLength, "the page list is shorter than the queue");
        const MAX_SHIFT: u32 = 40;
        let shift = 12 + log_page_size;
        if shift > MAX_SHIFT {
            return Err(BAD_PAGE.got(shift));
        }
        // The offset is given in 64ths of a page.
        let offset = u64::from(page_offset) << (shift - 6);
        let pages = (offset + len).div_ceil(1 << shift);
        let list = self.list();
        if pages > list.len() as u64 / 8 {
            return Err(FEW.got(list.len() as u64 / 8).limit(pages));
        }
        let pages = addresses(list).take(pages as usize).map(|page| page & hca_spec::mkc::MTT_ADDRESS);
        Buffer::new(pages.collect(), shift, offset, len).ok_or(FEW)
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
    output.truncate(cmd::PAS_OFFSET);
    for page in buffer.pages() {
        output.extend_from_slice(&page.to_be_bytes());
    }
    output
}

/// Whether the UAR page of a queue's doorbells is allocated.
pub(super) fn check_uar(fw: &Firmware, page: u32, none: Failure) -> Result<(), Failure> {
    match fw.icm.uars.get(UarIndex(page).0) {
        Some(_) => Ok(()),
        None => Err(none.got(page)),
    }
}
