"""Reads a pcapng file of InfiniBand packets and checks both checksums of each, with nothing of softhca.

Sources: draft-ietf-opsawg-pcapng 4; ERF types reference guide (record header); IBTA vol 1 7.8.1 (ICRC: Ethernet's CRC32 over LRH..payload, with what may change
on the way replaced by ones, GRH packets without their LRH), 7.8.2 (VCRC: CRC-16 with polynomial 0x100b).
Prints one line per packet: interface, direction, nanoseconds, length, "good" or what is wrong.
"""

import struct
import sys
import zlib


def blocks(data):
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0 and struct.unpack_from("<I", data, at + length - 4)[0] == length
        yield kind, data[at + 8:at + length - 4]
        at += length


def options(data):
    found = {}
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from("<HH", data, at)
        if code == 0:
            break
        found[code] = data[at + 4:at + 4 + length]
        at += 4 + (length + 3) // 4 * 4
    return found


def vcrc(data):
    # Bits least significant first: the polynomial 0x100b reversed.
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xD008 if crc & 1 else 0)
    return struct.pack("<H", crc ^ 0xFFFF)


def icrc(packet):
    packet = bytearray(packet)
    packet[0] |= 0xF0                   # LRH: virtual lane
    at = 8
    if packet[1] & 3 == 3:
        packet[0:8] = b"\xff" * 8       # all of the LRH
        at = 48
        packet[8] |= 0x0F               # GRH: traffic class, flow label
        packet[9:12] = b"\xff" * 3
        packet[15] = 0xFF               # hop limit
    if at + 4 < len(packet):            # else the LRH is broken, and there is no GRH
        packet[at + 4] = 0xFF           # BTH: reserved (FECN, BECN)
    return struct.pack("<I", zlib.crc32(bytes(packet)))


def main(path):
    names = []
    with open(path, "rb") as file:
        data = file.read()
    for kind, body in blocks(data):
        if kind == 1:
            assert struct.unpack_from("<H", body)[0] == 197, "link type: ERF"
            found = options(body[8:])
            assert found[9] == b"\x09", "resolution of times"
            names.append(found[2].decode())
        if kind == 6:
            interface, high, low, length, original = struct.unpack_from("<IIIII", body)
            assert length == original
            kind, flags, record, lost, wire = struct.unpack_from(">BBHHH", body, 28)
            assert (kind, record, wire) == (21, length, length - 16), "ERF header"
            packet = body[36:20 + length]
            found = options(body[20 + (length + 3) // 4 * 4:])
            direction = {1: "in", 2: "out"}[struct.unpack("<I", found[2])[0] & 3]
            wrong = []
            if packet[-2:] != vcrc(packet[:-2]):
                wrong.append("VCRC")
            if packet[-6:-2] != icrc(packet[:-6]):
                wrong.append("ICRC")
            print(names[interface], direction, high << 32 | low, wire, " ".join(wrong) or "good")


main(sys.argv[1])
