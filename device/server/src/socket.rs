//! The socket edge: one non-blocking receive with descriptors, one non-blocking send.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;

/// Most descriptors the kernel lets through with one message (`SCM_MAX_FD`).
const SCM_MAX_FD: usize = 253;
/// Control buffer for that many descriptors, in u64 so that it is aligned for `cmsghdr`.
const CONTROL_WORDS: usize = (SCM_MAX_FD * size_of::<RawFd>() + 64) / size_of::<u64>();

/// Receives up to `buf.len()` bytes and every descriptor that comes with them.
///
/// Returns the number of bytes (0 at end of stream, if `buf` is not empty), and whether descriptors were lost because this
/// process may have no more. Descriptors are
/// appended to `fds`, close-on-exec. The kernel ends a read on a stream socket behind the segment
/// that carries descriptors, and hands them out with the first byte of it: a caller that never
/// reads across a message boundary knows whose they are.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<(usize, bool)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: msghdr is plain data; all zeroes (null pointers, zero lengths) is a valid value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: msg points at `iov` (which describes exactly `buf`) and `control`; all three outlive
    // the call and nothing else refers to them during it.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, flags) };
    let got = usize::try_from(Errno::result(got)?).unwrap_or(0);

    // SAFETY: msg_control and msg_controllen describe `control` as the kernel filled it; the CMSG
    // macros stay within it.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    while !cmsg.is_null() {
        // SAFETY: CMSG_FIRSTHDR / CMSG_NXTHDR return null or a pointer to a whole header inside
        // `control`, which is aligned for it.
        let header = unsafe { *cmsg };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: pure arithmetic on a length.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            let bytes = (header.cmsg_len as usize).saturating_sub(overhead);
            // SAFETY: the data of this header lies inside `control`.
            let data: *const RawFd = unsafe { libc::CMSG_DATA(cmsg) }.cast();
            for i in 0..bytes / size_of::<RawFd>() {
                // SAFETY: i is below the number of descriptors the kernel wrote behind this header;
                // cmsg data may be unaligned for c_int on principle, so it is read unaligned.
                let fd = unsafe { data.add(i).read_unaligned() };
                // SAFETY: the kernel has just installed this descriptor for us; nobody else owns it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        cmsg = unsafe { libc::CMSG_NXTHDR(&raw const msg, cmsg) };
    }
    Ok((got, msg.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Sends as much of `bytes` as the socket takes now.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
    Ok(nix::sys::socket::send(socket.as_raw_fd(), bytes, flags)?)
}
