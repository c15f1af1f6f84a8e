"""Registers regions that are larger than the guest's memory, and writes and reads at both ends of them.

usage: large_regions.py MIB[h]...

A region for each argument, of that many MiB; with "h" of huge pages, of which there must be 16.
The same few pages are mapped again and again, so that a region of 5 GiB costs no more memory than a piece of it. Each
region is used as the local and as the remote side of RDMA writes and reads between two queue pairs of this host.
"""

import ctypes
import mmap
import os
import sys

import pyverbs.enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

MIB = 1 << 20
PIECE = 32 * MIB
LEN = 20000
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
MFD_HUGETLB = 4

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000
FAILED = ctypes.c_void_p(-1).value


def repeated(size, huge):
    """`size` bytes of address space, all of them the same piece of memory."""
    file = os.memfd_create("piece", MFD_HUGETLB if huge else 0)
    os.ftruncate(file, PIECE)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    base = libc.mmap(None, size + PIECE, PROT_NONE, anonymous, -1, 0)
    assert base != FAILED, os.strerror(ctypes.get_errno())
    start = (base + PIECE - 1) // PIECE * PIECE
    for at in range(0, size, PIECE):
        shared = mmap.MAP_SHARED | MAP_FIXED
        got = libc.mmap(start + at, min(PIECE, size - at), mmap.PROT_READ | mmap.PROT_WRITE, shared, file, 0)
        assert got == start + at, os.strerror(ctypes.get_errno())
    os.close(file)
    return base, start


context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
cq = CQ(context, 16)
port = context.query_port(1)


def queue_pair():
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4))
    return QP(pd, init)


def connect(qp, peer):
    attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_4096)
    attr.qp_access_flags = ACCESS
    attr.dest_qp_num = peer.qp_num
    attr.ah_attr = AHAttr(dlid=port.lid, port_num=1)
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 7, 7
    qp.to_rts(attr)


near, far = queue_pair(), queue_pair()
connect(near, far)
connect(far, near)
small = MR(pd, LEN, ACCESS)


def transfer(opcode, local, lkey, remote, rkey):
    wr = SendWR(opcode=opcode, num_sge=1, sg=[SGE(local, LEN, lkey)])
    wr.set_wr_rdma(rkey, remote)
    near.post_send(wr)
    while True:
        count, done = cq.poll()
        if count:
            assert done[0].status == e.IBV_WC_SUCCESS, f"status {done[0].status}"
            return


def use(size, huge):
    base, start = repeated(size, huge)
    region = MR(pd, size, ACCESS, address=start)
    for at in (0, size // 2 + 123, size - LEN):
        data = os.urandom(LEN)
        ctypes.memmove(small.buf, data, LEN)
        transfer(e.IBV_WR_RDMA_WRITE, small.buf, small.lkey, start + at, region.rkey)
        assert ctypes.string_at(start + at, LEN) == data, f"write to {at:#x}"
        other = os.urandom(LEN)
        ctypes.memmove(start + at, other, LEN)
        transfer(e.IBV_WR_RDMA_READ, small.buf, small.lkey, start + at, region.rkey)
        assert ctypes.string_at(small.buf, LEN) == other, f"read from {at:#x}"
        transfer(e.IBV_WR_RDMA_READ, start + at, region.lkey, small.buf, small.rkey)
        ctypes.memmove(small.buf, data, LEN)
        transfer(e.IBV_WR_RDMA_WRITE, start + at, region.lkey, small.buf, small.rkey)
        assert ctypes.string_at(small.buf, LEN) == other, f"write from {at:#x}"
    region.close()
    libc.munmap(base, size + PIECE)
    print(f"{size // MIB} MiB of {'huge' if huge else 'small'} pages")


for argument in sys.argv[1:]:
    use(int(argument.removesuffix("h")) * MIB, argument.endswith("h"))
print(f"regions: {len(sys.argv) - 1}")
