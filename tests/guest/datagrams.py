"""Datagrams and frames that no tool of the guests sends.

  segments receive | send HOST      one send of 43 datagrams, which the adapter cuts (UDP_SEGMENT)
  group receive ADDRESS | send      a datagram to 239.127.1.2, for a member with that address of its own
  frames TYPE COUNT                 frames of this EtherType to the other end of the cable, which gives each back
"""

import socket
import struct
import sys

UDP_SEGMENT = 103
SIZE, COUNT = 1400, 43
GROUP, PORT = "239.127.1.2", 7200


def segments(how, host=None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        if how == "send":
            udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
            udp.sendto(b"".join(bytes([n]) * SIZE for n in range(COUNT)), (host, PORT))
            return
        udp.bind(("", PORT))
        udp.settimeout(20)
        print("ready", flush=True)
        got = [udp.recv(65536) for _ in range(COUNT)]
        assert got == [bytes([n]) * SIZE for n in range(COUNT)], [(data[0], len(data)) for data in got]


def group(how, address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        if how == "send":
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            udp.sendto(b"to all of you", (GROUP, PORT))
            return
        udp.bind((GROUP, PORT))
        membership = socket.inet_aton(GROUP) + socket.inet_aton(address)
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        udp.settimeout(20)
        print("ready", flush=True)
        data, sender = udp.recvfrom(2048)
        print(data, sender)
        assert data == b"to all of you"


def frames(kind, count):
    kind, count = int(kind, 0), int(count)
    with open("/sys/class/net/hca0/address") as file:
        mine = bytes.fromhex(file.read().strip().replace(":", ""))
    # Nobody has this address: whoever gives back changes it with the sender's.
    theirs = bytes([255] * 6)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind)) as link:
        link.bind(("hca0", kind))
        link.settimeout(20)
        for n in range(count):
            payload = struct.pack(">I", n) + bytes([n & 255]) * (60 + 10 * n)
            link.send(theirs + mine + struct.pack(">H", kind) + payload)
            back = link.recv(65536)
            assert back == mine + theirs + struct.pack(">H", kind) + payload, (n, back)
    print(count, "came back")


{"segments": segments, "group": group, "frames": frames}[sys.argv[1]](*sys.argv[2:])
