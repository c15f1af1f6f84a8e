"""Runs a command while a program of ours looks at each received frame of hca0 first, in the driver (XDP).

  xdp.py pass|drop|return COMMAND...

`return` gives frames of EtherType 0x88b5 back the way they came (XDP_TX), and those of 0x88b6 by way of a redirection to the
same device (XDP_REDIRECT), each with its two addresses changed; others pass.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys

BPF = 321  # the system call, x86-64
PROG_LOAD, LINK_CREATE = 5, 28
TYPE_XDP, ATTACH_XDP, IN_THE_DRIVER = 6, 37, 1 << 2
DROP, PASS, TX = 1, 2, 3
REDIRECT = 23  # a function that programs may call

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    result = libc.syscall(BPF, command, attributes, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def instruction(code, to=0, source=0, offset=0, value=0):
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


def answer(value):
    return [instruction(0xB7, 0, value=value), instruction(0x95)]


def load(size, to, source, offset):
    return instruction({2: 0x69, 4: 0x61}[size], to, source, offset)


def store(size, to, source, offset):
    return instruction({2: 0x6B, 4: 0x63}[size], to, source, offset)


def program(what, device):
    if what != "return":
        return answer({"pass": PASS, "drop": DROP}[what])
    head = [load(4, 2, 1, 0), load(4, 3, 1, 4), instruction(0xBF, 4, 2), instruction(0x07, 4, value=14)]
    change = [load(4, 5, 2, 0), load(2, 6, 2, 4), load(4, 7, 2, 6), load(2, 8, 2, 10)]
    change += [store(4, 2, 7, 0), store(2, 2, 8, 4), store(4, 2, 5, 6), store(2, 2, 6, 10)]
    redirect = [instruction(0xB7, 1, value=device), instruction(0xB7, 2), instruction(0x85, value=REDIRECT), instruction(0x95)]
    transmit, passed = answer(TX), answer(PASS)
    # Which of the two ways, from behind the change of addresses on.
    way = [instruction(0x15, 9, offset=len(transmit), value=0xB688)] + transmit + redirect
    test = [
        load(2, 9, 2, 12),
        instruction(0x15, 9, offset=1, value=0xB588),
        instruction(0x55, 9, offset=len(change) + len(way), value=0xB688),
    ]
    over = instruction(0x2D, 4, 3, len(test) + len(change) + len(way))
    return head + [over] + test + change + way + passed


what, command = sys.argv[1], sys.argv[2:]
device = socket.if_nametoindex("hca0")
code = b"".join(program(what, device))
text, licence, log = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(65536)
address = ctypes.addressof
attributes = struct.pack("<IIQQIIQII16s", TYPE_XDP, len(code) // 8, address(text), address(licence), 1, len(log), address(log), 0, 0, b"tests")
try:
    loaded = bpf(PROG_LOAD, attributes)
except OSError:
    print(log.value.decode())
    raise
link = bpf(LINK_CREATE, struct.pack("<IIII", loaded, device, ATTACH_XDP, IN_THE_DRIVER))
print("attached", flush=True)
status = subprocess.run(command).returncode
os.close(link)
sys.exit(status)
