"""Reads a pcapng file of InfiniBand packets and Ethernet frames and checks the checksums of each, with nothing of softhca.

Sources: draft-ietf-opsawg-pcapng 4; ERF types reference guide (record header); IBTA vol 1 7.8.1 (ICRC: Ethernet's CRC32 over LRH..payload, with what may change
on the way replaced by ones, GRH packets without their LRH), 7.8.2 (VCRC: CRC-16 with polynomial 0x100b).
Of Ethernet: IEEE 802.3 3.2.9 (FCS: the same CRC32); IBTA annex A16 5.2 and A17 3.3.2 (ICRC of RoCE and RoCE v2: eight bytes of ones instead of the LRH,
and ones for what routers change: of IPv4 the type of service, time to live and checksum, of IPv6 and the GRH the class, label and hop limit, of UDP the checksum).
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


def roce(frame):
    """The bytes of RoCE in a frame, with ones for what may change on the way; None: it is something else."""
    at = 12
    while frame[at:at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    kind, packet = frame[at:at + 2], bytearray(frame[at + 2:])
    if kind == b"\x89\x15":                # RoCE: a GRH
        label, hops, end, length = True, 7, 40, 40 + struct.unpack_from(">H", packet, 4)[0]
    elif kind == b"\x86\xdd" and packet[6] == 17:
        label, hops, end, length = True, 7, 48, 40 + struct.unpack_from(">H", packet, 4)[0]
    elif kind == b"\x08\x00" and packet[9] == 17 and packet[0] == 0x45:
        label, hops, end, length = False, 8, 28, struct.unpack_from(">H", packet, 2)[0]
    else:
        return None
    if end != 40 and struct.unpack_from(">H", packet, end - 6)[0] != 4791:
        return None
    packet = packet[:length]                # without what pads it to 60 bytes
    if label:
        packet[0] |= 0x0F
        packet[1:4] = b"\xff" * 3
    else:
        packet[1] = 0xFF
        packet[10:12] = b"\xff" * 2
    packet[hops] = 0xFF
    if end != 40:
        packet[end - 2:end] = b"\xff" * 2
    packet[end + 4] = 0xFF                  # BTH: reserved (FECN, BECN)
    return b"\xff" * 8 + packet


def wrong_in_frame(frame):
    wrong = []
    if frame[-4:] != struct.pack("<I", zlib.crc32(frame[:-4])):
        wrong.append("FCS")
    packet = roce(frame[:-4])
    if packet is not None and packet[-4:] != struct.pack("<I", zlib.crc32(packet[:-4])):
        wrong.append("ICRC")
    return wrong


def wrong_in_packet(packet):
    wrong = []
    if packet[-2:] != vcrc(packet[:-2]):
        wrong.append("VCRC")
    if packet[-6:-2] != icrc(packet[:-6]):
        wrong.append("ICRC")
    return wrong


ETHERNET, ERF = 1, 197


def main(path):
    names = []
    with open(path, "rb") as file:
        data = file.read()
    for kind, body in blocks(data):
        if kind == 1:
            link = struct.unpack_from("<H", body)[0]
            assert link in (ETHERNET, ERF), "link type"
            found = options(body[8:])
            assert found[9] == b"\x09", "resolution of times"
            names.append((found[2].decode(), link))
        if kind == 6:
            interface, high, low, length, original = struct.unpack_from("<IIIII", body)
            assert length == original
            found = options(body[20 + (length + 3) // 4 * 4:])
            direction = {1: "in", 2: "out"}[struct.unpack("<I", found[2])[0] & 3]
            name, link = names[interface]
            if link == ERF:
                kind, flags, record, lost, wire = struct.unpack_from(">BBHHH", body, 28)
                assert (kind, record, wire) == (21, length, length - 16), "ERF header"
                wrong = wrong_in_packet(body[36:20 + length])
            else:
                wire, wrong = length, wrong_in_frame(body[20:20 + length])
            print(name, direction, high << 32 | low, wire, " ".join(wrong) or "good")


main(sys.argv[1])
