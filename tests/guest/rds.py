"""Datagrams over RDS: `rds.py MINE THEIRS serve|send`. Both sides know what comes; each is sent back."""

import random
import socket
import sys

PORT = 4000
COUNT = 100
# A socket takes no more than half of its send buffer, 104 KiB.
SIZES = [1, 100, 4096, 5000, 65536, 100_000]

mine, theirs, role = sys.argv[1:]
connection = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
connection.bind((mine, PORT))
connection.settimeout(60)
source = random.Random(1)
datagrams = [source.randbytes(source.choice(SIZES)) for _ in range(COUNT)]
if role == "serve":
    print("ready", flush=True)
for number, datagram in enumerate(datagrams):
    if role == "send":
        connection.sendto(datagram, (theirs, PORT))
    got, sender = connection.recvfrom(1 << 20)
    if got != datagram or sender != (theirs, PORT):
        sys.exit(f"datagram {number} of {len(datagram)} bytes: {len(got)} others came from {sender}")
    if role == "serve":
        connection.sendto(got, sender)
print(f"{COUNT} datagrams, {sum(map(len, datagrams))} bytes")
# What was sent last is to arrive before the socket goes.
connection.close()
