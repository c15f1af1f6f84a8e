"""Prints modelled latencies: what completion timestamps say of work requests that were posted by one doorbell.

usage: timestamps.py OP SIZE DEPTH

OP is read, write or fetch_add; requests of SIZE bytes run between two queue pairs of this host, of reads and atomics
DEPTH at a time. With a depth of 1 each begins when the one before it is answered, so that the distance of two
completions is the time that an operation takes; otherwise it is the reciprocal of their rate. The adapter's clock is
in the completions, so the speed of this program does not matter.

Prints a line: OP SIZE DEPTH NANOSECONDS
and a line with the adapter's clock, in its cycles, as `ibv_query_rt_values_ex` reads it before the requests are posted
and after the last has completed, and as the first and the last completion have it:
clock KILOHERTZ QPN BEFORE FIRST LAST AFTER
"""

import sys
from statistics import mean

import pyverbs.enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

REQUESTS = 256
# The first ones fill the pipeline.
WARM = 32
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
OPCODES = {"read": e.IBV_WR_RDMA_READ, "write": e.IBV_WR_RDMA_WRITE, "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD}

op, size, depth = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
context = Context(name=get_device_list()[0].name.decode())
# In kHz.
clock = context.query_device_ex().hca_core_clock


def now():
    seconds, cycles = context.query_rt_values_ex()
    assert seconds == 0, "mlx5 gives cycles in the field for nanoseconds"
    return cycles


pd = PD(context)
flags = e.IBV_WC_STANDARD_FLAGS | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
sends = CQEX(context, CqInitAttrEx(cqe=REQUESTS, wc_flags=flags))
receives = CQ(context, 16)
lid = context.query_port(1).lid


def queue_pair(scq):
    cap = QPCap(max_send_wr=REQUESTS, max_recv_wr=1)
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=scq, rcq=receives, cap=cap))


def connect(qp, peer):
    attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_4096)
    attr.qp_access_flags = ACCESS
    attr.dest_qp_num = peer.qp_num
    attr.ah_attr = AHAttr(dlid=lid, port_num=1)
    attr.max_rd_atomic = attr.max_dest_rd_atomic = depth
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 7, 7
    qp.to_rts(attr)


near, far = queue_pair(sends), queue_pair(receives)
connect(near, far)
connect(far, near)
local, remote = MR(pd, size, ACCESS), MR(pd, size, ACCESS)


def request(index, following):
    wr = SendWR(wr_id=index, opcode=OPCODES[op], num_sge=1, sg=[SGE(local.buf, size, local.lkey)], next_wr=following)
    if op == "fetch_add":
        wr.set_wr_atomic(remote.rkey, remote.buf, 1, 0)
    else:
        wr.set_wr_rdma(remote.rkey, remote.buf)
    return wr


requests = []
for index in reversed(range(REQUESTS)):
    requests.append(request(index, requests[-1] if requests else None))
before = now()
near.post_send(requests[-1])

times = []
while len(times) < REQUESTS:
    if sends.start_poll(PollCqAttr()) != 0:
        continue
    more = 0
    while more == 0:
        assert sends.status == e.IBV_WC_SUCCESS, sends.status
        assert sends.wr_id == len(times), "completions come in order"
        times.append(sends.read_timestamp())
        more = sends.poll_next()
    sends.end_poll()

# Looked at again and again, the clock goes on and never back.
after = [now() for _ in range(100)]
assert after == sorted(after) and after[0] < after[-1], after

gaps = [(after - before) * 1e6 / clock for before, after in zip(times[WARM:], times[WARM + 1 :])]
print(op, size, depth, round(mean(gaps), 2))
print("clock", clock, near.qp_num, before, times[0], times[-1], after[0])
