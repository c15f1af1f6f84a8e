"""Exchanges frames of EtherType 0x88b5 with a peer through an AF_XDP socket of hca0, without the kernel's stack.

  xsk.py zero|copy aligned|unaligned CHUNK FRAMES

Answers FRAMES frames that come to queue 0, their addresses changed, from the memory that the device wrote them to: `zero` asks for
zero copy, `unaligned` for chunks that may lie anywhere. Everything else passes to the kernel.
"""

import ctypes
import mmap
import os
import select
import socket
import struct
import sys
import time

BPF = 321  # the system call, x86-64
MAP_CREATE, MAP_UPDATE, PROG_LOAD, LINK_CREATE = 0, 2, 5, 28
XSKMAP, TYPE_XDP, ATTACH_XDP, IN_THE_DRIVER = 17, 6, 37, 1 << 2
REDIRECT_MAP, PASS = 51, 2
AF_XDP, SOL_XDP = 44, 283
MMAP_OFFSETS, RX_RING, TX_RING, UMEM_REG, FILL_RING, COMPLETION_RING, STATISTICS, OPTIONS = range(1, 9)
COPY, ZERO_COPY, NEED_WAKEUP, UNALIGNED = 1 << 1, 1 << 2, 1 << 3, 1 << 0
PLACES = {RX_RING: 0, TX_RING: 0x80000000, FILL_RING: 0x100000000, COMPLETION_RING: 0x180000000}
RING, CHUNKS = 512, 1024
OFFSET_BITS = 48  # of an address in unaligned chunks: the offset within the chunk stands above

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def check(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def bpf(command, attributes):
    return check(libc.syscall(BPF, command, attributes, len(attributes)), f"bpf {command}")


def option(sock, name, value):
    check(libc.setsockopt(sock, SOL_XDP, name, value, len(value)), f"setsockopt {name}")


def asked(sock, name, size):
    room, length = ctypes.create_string_buffer(size), ctypes.c_uint32(size)
    check(libc.getsockopt(sock, SOL_XDP, name, room, ctypes.byref(length)), f"getsockopt {name}")
    return room.raw[: length.value]


class Ring:
    """One of the rings that the kernel and we share."""

    def __init__(self, sock, name, offsets, entry):
        self.producer, self.consumer, self.entries, self.flags = offsets
        size = self.entries + RING * entry
        at = libc.mmap(None, size, 3, 0x8001, sock, PLACES[name])  # MAP_SHARED | MAP_POPULATE
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"mmap of ring {name}")
        self.memory, self.entry = (ctypes.c_char * size).from_address(at), entry

    def word(self, at):
        return ctypes.c_uint32.from_buffer(self.memory, at)

    def put(self, raws):
        producer = self.word(self.producer)
        for i, raw in enumerate(raws):
            at = self.entries + (producer.value + i) % RING * self.entry
            self.memory[at : at + self.entry] = raw
        producer.value = (producer.value + len(raws)) & 0xFFFFFFFF

    def take(self):
        consumer, producer = self.word(self.consumer), self.word(self.producer).value
        while consumer.value != producer:
            at = self.entries + consumer.value % RING * self.entry
            yield self.memory[at : at + self.entry]
            consumer.value = (consumer.value + 1) & 0xFFFFFFFF

    def wants_wakeup(self):
        return self.word(self.flags).value & 1


mode, layout, chunk, frames = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
unaligned = layout == "unaligned"
device = socket.if_nametoindex("hca0")
sock = check(libc.socket(AF_XDP, socket.SOCK_RAW, 0), "socket")
umem = mmap.mmap(-1, CHUNKS * chunk, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
base = ctypes.addressof(ctypes.c_char.from_buffer(umem))
option(sock, UMEM_REG, struct.pack("<QQIII", base, CHUNKS * chunk, chunk, 0, UNALIGNED if unaligned else 0))
for name in (FILL_RING, COMPLETION_RING, RX_RING, TX_RING):
    option(sock, name, struct.pack("<I", RING))
raw = asked(sock, MMAP_OFFSETS, 128)
offsets = [struct.unpack_from("<QQQQ", raw, i * 32) for i in range(4)]
offsets = [(producer, consumer, entries, flags) for producer, consumer, entries, flags in offsets]
rx, tx = Ring(sock, RX_RING, offsets[0], 16), Ring(sock, TX_RING, offsets[1], 16)
fill, done = Ring(sock, FILL_RING, offsets[2], 8), Ring(sock, COMPLETION_RING, offsets[3], 8)
# Half a chunk off: such an address is legal only in unaligned chunks.
shift = chunk // 2 if unaligned else 0
fill.put([struct.pack("<Q", i * chunk + shift) for i in range(RING - 1)])
flags = (ZERO_COPY if mode == "zero" else COPY) | NEED_WAKEUP
address = struct.pack("<HHIII", AF_XDP, flags, device, 0, 0)
check(libc.bind(sock, address, len(address)), "bind")
zero = struct.unpack("<I", asked(sock, OPTIONS, 4))[0] & 1
assert zero == (mode == "zero"), f"options say zero copy {zero}"

sockets = bpf(MAP_CREATE, struct.pack("<IIIII", XSKMAP, 4, 4, 64, 0) + bytes(40))
key, value = ctypes.create_string_buffer(struct.pack("<I", 0)), ctypes.create_string_buffer(struct.pack("<I", sock))
where = ctypes.addressof
bpf(MAP_UPDATE, struct.pack("<IIQQQ", sockets, 0, where(key), where(value), 0))


def instruction(code, to=0, source=0, offset=0, value=0):
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


# Our frames go to the socket of their queue, if there is one; others, and those of other queues, to the kernel.
to_socket = [
    instruction(0x61, 2, 1, 16),
    instruction(0x18, 1, 1, 0, sockets) + instruction(0),
    instruction(0xB7, 3, value=PASS),
    instruction(0x85, value=REDIRECT_MAP),
    instruction(0x95),
]
ours = [
    instruction(0x61, 4, 1, 0),
    instruction(0x61, 5, 1, 4),
    instruction(0xBF, 6, 4),
    instruction(0x07, 6, value=14),
    instruction(0x2D, 6, 5, 2 + 6),
    instruction(0x69, 7, 4, 12),
    instruction(0x55, 7, offset=6, value=0xB588),
]
code = b"".join(ours + to_socket + [instruction(0xB7, 0, value=PASS), instruction(0x95)])
text, licence, log = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(65536)
attributes = struct.pack("<IIQQIIQII16s", TYPE_XDP, len(code) // 8, where(text), where(licence), 1, len(log), where(log), 0, 0, b"tests")
try:
    loaded = bpf(PROG_LOAD, attributes)
except OSError:
    print(log.value.decode())
    raise
link = bpf(LINK_CREATE, struct.pack("<IIII", loaded, device, ATTACH_XDP, IN_THE_DRIVER))
print("attached", flush=True)

poller = select.poll()
poller.register(sock, select.POLLIN)
answered, until, view = 0, time.monotonic() + 120, memoryview(umem)
while answered < frames and time.monotonic() < until:
    if fill.wants_wakeup():
        poller.poll(100)
    answers = []
    for raw in rx.take():
        where_it_is, length, _ = struct.unpack("<QII", raw)
        start = (where_it_is & (1 << OFFSET_BITS) - 1) + (where_it_is >> OFFSET_BITS) if unaligned else where_it_is
        frame = view[start : start + length]
        frame[0:12] = bytes(frame[6:12]) + bytes(frame[0:6])
        answers.append(struct.pack("<QII", where_it_is, length, 0))
    if answers:
        tx.put(answers)
        answered += len(answers)
    if answers or tx.wants_wakeup():
        libc.sendto(sock, None, 0, 0x40, None, 0)  # MSG_DONTWAIT
    back = []
    for raw in done.take():
        at = struct.unpack("<Q", raw)[0]
        start = (at & (1 << OFFSET_BITS) - 1) + (at >> OFFSET_BITS) if unaligned else at
        back.append(struct.pack("<Q", start // chunk * chunk + shift))
    if back:
        fill.put(back)
# What was sent last leaves.
time.sleep(1)
print(f"answered {answered} of {frames}, dropped {struct.unpack_from('<Q', asked(sock, STATISTICS, 48))[0]}")
os.close(link)
sys.exit(answered < frames)
