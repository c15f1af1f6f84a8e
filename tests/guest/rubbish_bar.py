"""Rubbish through BAR0 of an adapter without a driver: what a broken driver could do, and worse.

usage: rubbish_bar.py SLOT SEED

Register writes of every width, doorbells of all kinds, a command queue outside memory, and then one in memory with
commands that are sensible, half sensible or not at all. The addresses it hands out are its own pages, or lie beyond
the guest's memory: the adapter may write to all that it is given. Prints how many commands were answered, and how.
"""

import collections
import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys

slot, seed = sys.argv[1], int(sys.argv[2])
device = f"/sys/bus/pci/devices/{slot}/"
rng = random.Random(seed)
COMMAND_QUEUE = (0x10, 0x14)
COMMAND_DOORBELL = 0x18
BEYOND = 1 << 40
PAGE = 4096


def sysfs(name, text):
    with open(device + name, "w") as file:
        file.write(text)


sysfs("enable", "1")
# Memory space and bus mastering.
subprocess.run(["setpci", "-s", slot, "COMMAND=0006"], check=True)
bar_file = os.open(device + "resource0", os.O_RDWR)
bar = mmap.mmap(bar_file, 0)
base = ctypes.addressof(ctypes.c_char.from_buffer(bar))
WIDTHS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def poke(offset, value, width=4):
    """One store of that width, big-endian as the adapter's registers."""
    bits = value & ((1 << 8 * width) - 1)
    WIDTHS[width].from_address(base + offset).value = int.from_bytes(bits.to_bytes(width, "big"), "little")


def peek(offset, width=4):
    value = WIDTHS[width].from_address(base + offset).value
    return int.from_bytes(value.to_bytes(width, "little"), "big")


# 1. Registers and doorbells, anywhere.
for _ in range(1500):
    width = rng.choice((1, 2, 4, 4, 4, 8))
    offset = rng.choice((rng.randrange(0x3000), rng.randrange(len(bar)), 0x1000 * rng.randrange(2, 64)))
    offset += rng.choice((0, 0x20, 0x24, 0x40, 0x48, 0x800, 0x804, 0x900))
    offset = min(offset, len(bar) - 8) // width * width
    if offset < COMMAND_DOORBELL:
        continue  # the command queue's address comes next, and not at random
    if rng.random() < 0.2:
        peek(offset, width)
    else:
        poke(offset, rng.choice((0, ~0, rng.getrandbits(64), rng.getrandbits(8))), width)

# 2. A command queue that is not there.
for _ in range(20):
    address = BEYOND + rng.randrange(1 << 20) * PAGE
    poke(COMMAND_QUEUE[0], address >> 32)
    poke(COMMAND_QUEUE[1], address & 0xFFFFFFFF)
    poke(COMMAND_DOORBELL, rng.getrandbits(32))

# 3. A command queue in memory of ours.
COUNT = 40
memory = mmap.mmap(-1, COUNT * PAGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
memory.write(b"\1" * len(memory))
own = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
if libc.mlock(ctypes.c_void_p(own), ctypes.c_size_t(len(memory))):
    sys.exit("mlock failed")
with open("/proc/self/pagemap", "rb") as pagemap:
    pagemap.seek(own // PAGE * 8)
    frames = struct.unpack(f"<{COUNT}Q", pagemap.read(8 * COUNT))
pages = [(frame & ((1 << 55) - 1)) * PAGE for frame in frames]
assert all(pages), "no physical addresses: not root?"
QUEUE, IN, OUT, DATA = 0, 1, 17, 33
poke(COMMAND_QUEUE[0], pages[QUEUE] >> 32)
poke(COMMAND_QUEUE[1], pages[QUEUE] & 0xFFFFFFFF)


def put(page, offset, data):
    memory[page * PAGE + offset : page * PAGE + offset + len(data)] = data


def some_page():
    return rng.choice((pages[DATA + rng.randrange(COUNT - DATA)], BEYOND + rng.randrange(1 << 20) * PAGE))


def mailboxes(first, token, data, wild):
    """Lays data out over a chain; returns its address."""
    blocks = max(1, (len(data) + 511) // 512)
    for i in range(blocks):
        following = pages[first + i + 1] if i + 1 < blocks else 0
        number, its_token = i, token
        if wild and rng.random() < 0.3:
            following = rng.choice((pages[first], some_page(), rng.getrandbits(64) | BEYOND))
        if wild and rng.random() < 0.1:
            number, its_token = rng.getrandbits(32), rng.getrandbits(8)
        put(first + i, 0, data[512 * i : 512 * (i + 1)].ljust(512, b"\0"))
        put(first + i, 0x230, struct.pack(">QIBBBB", following, number, 0, its_token, 0, 0))
    return pages[first]


answers = collections.Counter()


def command(opcode, body=b"", out_length=16, op_mod=0, wild=False):
    """Runs one command; returns (status, output in the entry), or None if it was not answered."""
    index = rng.randrange(32) if wild else 0
    token = rng.getrandbits(8)
    data = struct.pack(">HHHH", opcode, 0, 0, op_mod) + body.ljust(8, b"\0")
    out_length = min(out_length, 16 + 512 * (DATA - OUT))
    data = data[: 16 + 512 * (OUT - IN)]
    in_box = mailboxes(IN, token, data[16:], wild) if len(data) > 16 else 0
    out_box = mailboxes(OUT, token, b"\0" * (out_length - 16), wild) if out_length > 16 else 0
    length, kind = len(data), 7
    if wild and rng.random() < 0.2:
        length, out_length = rng.getrandbits(32), rng.getrandbits(32)
    if wild and rng.random() < 0.05:
        in_box, out_box, kind = some_page(), rng.getrandbits(64) | BEYOND, rng.getrandbits(8)
    entry = struct.pack(">B3xIQ", kind, length, in_box) + data[:16] + b"\0" * 16
    entry += struct.pack(">QI", out_box, out_length) + bytes((token, 0, 0, 1))
    put(QUEUE, 64 * index, entry)
    poke(COMMAND_DOORBELL, 1 << index)
    for _ in range(20000):
        state = memory[64 * index + 0x3F]
        if not state & 1:
            break
    else:
        answers["not answered"] += 1
        return None
    reply = memory[64 * index + 0x20 : 64 * index + 0x30]
    if state:
        answers["not delivered"] += 1
    else:
        answers["done" if reply[0] == 0 else "refused"] += 1
    return reply[0], reply


QUERY_PAGES, MANAGE_PAGES, INIT_HCA, ENABLE_HCA, SET_ISSI = 0x107, 0x108, 0x102, 0x104, 0x10B
next_page = BEYOND


def give_pages(which):
    """Gives what the firmware asks for: addresses that are not memory, which is its own affair to keep."""
    global next_page
    answer = command(QUERY_PAGES, op_mod=which)
    wanted = struct.unpack(">i", answer[1][12:16])[0] if answer else 0
    while wanted > 0:
        n = min(wanted, 512)
        wanted -= n
        addresses = b"".join(struct.pack(">Q", next_page + i * PAGE) for i in range(n))
        next_page += n * PAGE
        command(MANAGE_PAGES, struct.pack(">HHI", 0, 0, n) + addresses, op_mod=1)


OPCODES = (
    [0x100, 0x101, 0x107, 0x108, 0x109, 0x10A, 0x10D]
    + list(range(0x200, 0x206))
    + list(range(0x301, 0x306))
    + list(range(0x400, 0x405))
    + list(range(0x500, 0x510))
    + list(range(0x700, 0x709))
    + list(range(0x750, 0x774))
    + list(range(0x800, 0x819))
    + list(range(0x900, 0x914))
    + [0xA04, 0xA06, 0xB00, 0xFFFF]
)


def body():
    """Input after the opcode: mostly small numbers, sometimes noise, page lists at the end."""
    size = rng.choice((8, 8, 8, 56, 264, 264 + 64, 0x1008))
    words = []
    for _ in range(size // 4):
        roll = rng.random()
        words.append(0 if roll < 0.6 else rng.randrange(16) if roll < 0.9 else rng.getrandbits(32))
    data = struct.pack(f">{len(words)}I", *words)
    if size > 0x108:
        data = data[:0x108] + b"".join(struct.pack(">Q", some_page()) for _ in range(8)) + data[0x148:]
    return data


for life in range(2):
    command(ENABLE_HCA)
    command(SET_ISSI, struct.pack(">HHI", 0, 1, 0))
    give_pages(1)
    give_pages(2)
    command(INIT_HCA)
    give_pages(3)
    for _ in range(400):
        command(rng.choice(OPCODES), body(), rng.choice((16, 16, 64, 272, 0x1010)), rng.choice((0, 0, 1, 2)), rng.random() < 0.5)
        if rng.random() < 0.3:
            at = 0x1000 * rng.randrange(2, 8) + rng.choice((0x20, 0x40, 0x48, 0x800, 0x900))
            poke(at, rng.getrandbits(64) & 0xFFFFFF_00000FFF, 8)
    # Our pages go back to the kernel at the end: from here on the adapter must not use them.
    sysfs("reset", "1")
    subprocess.run(["setpci", "-s", slot, "COMMAND=0006"], check=True)
    poke(COMMAND_QUEUE[0], pages[QUEUE] >> 32)
    poke(COMMAND_QUEUE[1], pages[QUEUE] & 0xFFFFFFFF)

sysfs("reset", "1")
sysfs("enable", "0")
for answer, count in sorted(answers.items()):
    print(f"{answer}: {count}")
