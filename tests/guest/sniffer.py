"""Looks at what a port receives and sends, RoCE packets too, as sniffers of verbs do.

usage: sniffer.py PACKETS

Says "sniffing" when its rule is there, and ends when it has seen so many packets of RoCE v2; of each it prints opcode,
destination queue pair, and length.
"""

import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR

ROOM = 2048
REQUESTS = 256
SECONDS = 60
ROCE_V2 = 4791

wanted = int(sys.argv[1])
context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
cq = CQ(context, REQUESTS)
mr = MR(pd, ROOM * REQUESTS, e.IBV_ACCESS_LOCAL_WRITE)
init = QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=REQUESTS))
qp = QP(pd, init, QPAttr(port_num=1))
# A raw packet queue pair is ready to receive by its port alone.
qp.to_rtr(QPAttr(port_num=1)) if qp.qp_state < e.IBV_QPS_RTR else None


def post(request):
    qp.post_recv(RecvWR(num_sge=1, wr_id=request, sg=[SGE(mr.buf + request * ROOM, ROOM, mr.lkey)]))


for request in range(REQUESTS):
    post(request)
flow = Flow(qp, FlowAttr(port=1, flow_type=e.IBV_FLOW_ATTR_SNIFFER))
print("sniffing", flush=True)
seen = 0
end = time.monotonic() + SECONDS
while seen < wanted and time.monotonic() < end:
    for completion in cq.poll(16)[1]:
        assert completion.status == e.IBV_WC_SUCCESS, completion
        length = min(completion.byte_len, ROOM)
        frame = mr.read(length, completion.wr_id * ROOM)
        udp = frame[12:14] == b"\x08\x00" and frame[23] == 17 and int.from_bytes(frame[36:38], "big") == ROCE_V2
        if udp:
            seen += 1
            print(f"opcode {frame[42]:#x} to {int.from_bytes(frame[47:50], 'big'):#x}, {completion.byte_len} bytes", flush=True)
        post(completion.wr_id)
flow.close()
sys.exit(seen < wanted)
