"""Rubbish from a program without privileges: everything that the verbs library maps into its memory, filled badly.

usage: rubbish_verbs.py SEED PEER_LID

Sends and RDMA to queue pairs of others, work requests of noise, doorbells and doorbell records that make no sense.
Prints in which states its queue pairs ended.
"""

import collections
import ctypes
import random
import struct
import sys
from ctypes import c_int, c_uint32, c_void_p

rng = random.Random(int(sys.argv[1]))
peer_lid = int(sys.argv[2])
verbs = ctypes.CDLL("libibverbs.so.1")
mlx5 = ctypes.CDLL("libmlx5.so.1")
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"):
    getattr(verbs, name).restype = c_void_p

devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(c_void_p))
context = c_void_p(verbs.ibv_open_device(c_void_p(devices[0])))
pd = c_void_p(verbs.ibv_alloc_pd(context))
assert context.value and pd.value, "no device or no protection domain"
port = ctypes.create_string_buffer(256)
assert verbs.ibv_query_port(context, 1, port) == 0
# struct ibv_port_attr: lid follows eight 32-bit fields.
own_lid = struct.unpack_from("<H", port, 34)[0]
assert own_lid and own_lid != peer_lid, f"LIDs {own_lid} and {peer_lid}"

SIZE = 1 << 16
data = ctypes.create_string_buffer(SIZE)
ACCESS_ALL = 0xF
mr = c_void_p(verbs.ibv_reg_mr(pd, data, ctypes.c_size_t(SIZE), ACCESS_ALL))
assert mr.value, "no memory region"
# struct ibv_mr: context, pd, addr, length, handle, lkey, rkey.
lkey, rkey = struct.unpack("<II", ctypes.string_at(mr.value + 36, 8))
cq = c_void_p(verbs.ibv_create_cq(context, 255, None, None, 0))
assert cq.value, "no completion queue"

# Masks and states of ibv_modify_qp.
STATE, ACCESS, PKEY_INDEX, PORT = 1 << 0, 1 << 3, 1 << 4, 1 << 5
AV, PATH_MTU, TIMEOUT, RETRY, RNR_RETRY, RQ_PSN = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
MAX_RD, MIN_RNR, SQ_PSN, MAX_DEST_RD, DEST_QPN = 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 20
RESET, INIT, RTR, RTS, ERROR = 0, 1, 2, 3, 6
RC = 2


def attributes(state=RESET, dest=0, lid=0, psn=0):
    """struct ibv_qp_attr."""
    a = bytearray(144)
    struct.pack_into("<3I", a, 0, state, 0, 3)
    struct.pack_into("<4I", a, 20, psn, psn, dest, ACCESS_ALL)
    struct.pack_into("<HBBBBB", a, 56 + 24, lid, 0, 0, 0, 0, 1)
    struct.pack_into("<HHBBBBBBBBB", a, 120, 0, 0, 0, 0, 4, 4, 1, 1, 10, 1, 1)
    return (ctypes.c_char * len(a)).from_buffer(a)


states = collections.Counter()


class Qp:
    """A queue pair with the addresses of what the library keeps of it."""

    def __init__(self):
        # struct ibv_qp_init_attr, with room.
        init = struct.pack("<4Q5Iii", 0, cq.value, cq.value, 0, 32, 32, 4, 4, 0, RC, 1).ljust(128, b"\0")
        self.qp = c_void_p(verbs.ibv_create_qp(pd, ctypes.create_string_buffer(init, 128)))
        assert self.qp.value, "no queue pair"
        out = ctypes.create_string_buffer(256)
        # struct mlx5dv_obj: pairs of pointers, in and out, the queue pair's first.
        pairs = struct.pack("<2Q", self.qp.value, ctypes.addressof(out)).ljust(256, b"\0")
        MLX5DV_OBJ_QP = 1
        assert mlx5.mlx5dv_init_obj(ctypes.create_string_buffer(pairs, 256), ctypes.c_uint64(MLX5DV_OBJ_QP)) == 0
        (self.dbrec, self.sq, self.sq_count, _, self.rq, self.rq_count, self.rq_stride, self.register, _) = (
            struct.unpack_from("<QQIIQIIQI", out)
        )
        # struct ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num.
        self.number = struct.unpack("<I", ctypes.string_at(self.qp.value + 52, 4))[0]
        self.posted = 0

    def modify(self, attr, mask):
        return verbs.ibv_modify_qp(self.qp, attr, c_int(mask))

    def connect(self, dest, lid, psn):
        attr = lambda state: attributes(state, dest, lid, psn)
        steps = (
            (INIT, STATE | PKEY_INDEX | PORT | ACCESS),
            (RTR, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR),
            (RTS, STATE | TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD),
        )
        for state, mask in steps:
            error = self.modify(attr(state), mask)
            assert error == 0, f"to state {state}: {error}"

    def post(self, wqe):
        """Puts a work request's bytes into the ring, as they are, and rings."""
        blocks = max(1, (len(wqe) + 63) // 64)
        for i, byte in enumerate(wqe.ljust(64 * blocks, b"\0")):
            at = (64 * self.posted + i) % (64 * self.sq_count)
            ctypes.c_uint8.from_address(self.sq + at).value = byte
        self.posted += blocks
        self.record(1, self.posted & 0xFFFF)
        self.ring(wqe[:8])

    def record(self, index, value):
        c_uint32.from_address(self.dbrec + 4 * index).value = int.from_bytes(struct.pack(">I", value), "little")

    def ring(self, first):
        ctypes.c_uint64.from_address(self.register).value = int.from_bytes(first, "little")

    def state(self):
        attr, init = attributes(), ctypes.create_string_buffer(128)
        assert verbs.ibv_query_qp(self.qp, attr, c_int(STATE), init) == 0
        return struct.unpack_from("<I", bytes(attr), 0)[0]

    def end(self):
        """Notes its state, error if it gets there soon, and destroys it."""
        for _ in range(100):
            state = self.state()
            if state == ERROR:
                break
        states[state] += 1
        assert verbs.ibv_destroy_qp(self.qp) == 0


def control(qp, opcode, segments, index=None, number=None):
    index = qp.posted if index is None else index
    number = qp.number if number is None else number
    return struct.pack(">BHBIIxxxB", 0, index & 0xFFFF, opcode, number << 8 | segments, 8, 0)[:16].ljust(16, b"\0")


WRITE, SEND, READ, ATOMIC = 0x08, 0x0A, 0x10, 0x12

# 1. Well-formed requests to queue pairs that others have, or that nobody has.
for dest in list(range(0x40, 0x70)) + [2, 0, 1, 0xFFFFFF]:
    qp = Qp()
    qp.connect(dest, peer_lid, rng.getrandbits(24))
    own = struct.pack(">IIQ", 64, lkey, ctypes.addressof(data))
    remote = struct.pack(">QII", rng.getrandbits(48), rng.getrandbits(32), 0)
    qp.post(control(qp, SEND, 2) + own)
    qp.post(control(qp, WRITE, 3) + remote + own)
    qp.post(control(qp, READ, 3) + remote + own)
    qp.end()

# 2. Requests of noise, to ourselves.
for _ in range(60):
    qp = Qp()
    qp.connect(qp.number, own_lid, 0)
    for i in range(64 * qp.rq_count):
        ctypes.c_uint8.from_address(qp.rq + i % max(1, qp.rq_count * qp.rq_stride)).value = rng.getrandbits(8)
    qp.record(0, rng.choice((1, 32, rng.getrandbits(16))))
    for _ in range(4):
        opcode = rng.choice((0, 1, WRITE, 9, SEND, 0xB, READ, 0x11, ATOMIC, 0x14, 0x15, 0x1B, 0x25, rng.getrandbits(8)))
        segments = rng.choice((2, 3, 3, 4, 4, 8, 16, rng.getrandbits(6)))
        wqe = control(qp, opcode, segments, rng.choice((None, None, rng.getrandbits(16))))
        for _ in range(max(0, segments - 1)):
            key = rng.choice((lkey, rkey, lkey ^ 0x100, rng.getrandbits(32)))
            where = rng.choice((ctypes.addressof(data) + rng.randrange(SIZE), rng.getrandbits(64)))
            length = rng.choice((0, 1, 64, SIZE, rng.getrandbits(32)))
            wqe += rng.choice(
                (struct.pack(">IIQ", length, key, where), struct.pack(">QII", where, key, 0), rng.randbytes(16))
            )
        qp.post(wqe)
    if rng.random() < 0.3:
        qp.record(1, rng.getrandbits(16))
        qp.ring(rng.randbytes(8))
    qp.end()

# 3. Doorbells of objects of others, of the kernel, and of nobody, at every place of the pages we were given.
with open("/proc/self/maps") as maps:
    doorbells = [int(line.split("-")[0], 16) for line in maps if "uverbs" in line and " -w-s " in line]
assert doorbells, "the verbs library has mapped no doorbells"
for _ in range(600):
    page = rng.choice(doorbells)
    offset = rng.choice((0x20, 0x40, 0x48, 0x800, 0x900, rng.randrange(512) * 8))
    first, second = rng.getrandbits(32), rng.getrandbits(32)
    if rng.random() < 0.7:
        # Numbers that exist, of any kind: an EQ's in the first byte, a CQ's, a QP's.
        first = rng.randrange(16) << 24 | rng.getrandbits(24)
        second = rng.choice((rng.randrange(128), rng.randrange(128) << 8))
    if rng.random() < 0.5:
        c_uint32.from_address(page + offset).value = int.from_bytes(struct.pack(">I", first), "little")
    else:
        ctypes.c_uint64.from_address(page + offset).value = int.from_bytes(struct.pack(">II", first, second), "little")

for state, count in sorted(states.items()):
    print(f"state {state}: {count}")
# The process ends with everything open: the kernel cleans up.
