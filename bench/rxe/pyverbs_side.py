# As side.mjs, with pyverbs, for the tests that it has too: python3 pyverbs_side.py '{"role": ..., ...}'
import json
import socket
import statistics
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

options = json.loads(sys.argv[1])
is_client = options['role'] == 'client'
size = options['latencyBytes']
gid_index = options['gidIndex']
GRH_BYTES = 40
QKEY = 0x11111111
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)

context = Context(name=options['device'])
pd = PD(context)
# Sent from the first part, received in the second.
half = max(size, 8) + GRH_BYTES
mr = MR(pd, 2 * half, ACCESS)
mr.write(bytes(2 * half), 2 * half)

if is_client:
    connection = socket.create_connection(('127.0.0.1', options['port']))
else:
    listener = socket.create_server(('127.0.0.1', 0))
    print(listener.getsockname()[1], flush=True)
    connection = listener.accept()[0]
stream = connection.makefile('rw')


def exchange(value=None):
    stream.write(json.dumps(value) + '\n')
    stream.flush()
    return json.loads(stream.readline())


def queue_pair(cq, qp_type=e.IBV_QPT_RC, srq=None):
    """A queue pair that is ready, and what the other side said of its own."""
    cap = QPCap(max_send_wr=16, max_recv_wr=0 if srq else 16)
    init = QPInitAttr(qp_type=qp_type, scq=cq, rcq=cq, srq=srq, cap=cap)
    attr = QPAttr(port_num=1)
    if qp_type == e.IBV_QPT_UD:
        attr.qkey = QKEY
        qp = QP(pd, init, attr)
    else:
        qp = QP(pd, init)
    gid = context.query_gid(1, gid_index).gid
    peer = exchange({'qpn': qp.qp_num, 'gid': gid, 'addr': mr.buf, 'rkey': mr.rkey})
    route = GlobalRoute(dgid=GID(peer['gid']), sgid_index=gid_index, hop_limit=64)
    peer['address'] = AHAttr(gr=route, is_global=1, port_num=1)
    if qp_type != e.IBV_QPT_UD:
        attr.dest_qp_num = peer['qpn']
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = attr.rnr_retry = 7
        attr.qp_access_flags = ACCESS
        attr.ah_attr = peer['address']
        qp.to_rts(attr)
    return qp, peer


def successes(cq, count):
    """Polls until `count` completions were there."""
    while count > 0:
        found, completions = cq.poll(count)
        for wc in completions:
            if wc.status != e.IBV_WC_SUCCESS:
                raise RuntimeError(f'a completion has status {wc.status}')
        count -= found


def summary(times):
    return {'best': min(times), 'typical': statistics.median(times)}


def ping_pong(send, receive):
    times = []
    for i in range(options['iterations']):
        start = time.perf_counter()
        if is_client:
            send(i)
        receive(i)
        if not is_client:
            send(i)
        times.append((time.perf_counter() - start) * 1e6 / 2)
    return summary(times)


def sends(opcode=e.IBV_WR_SEND, length=size, at=0):
    return SendWR(
        opcode=opcode, num_sge=1, sg=[SGE(mr.buf + at, length, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED
    )


def write_lat(qp, cq, peer):
    wr = sends(e.IBV_WR_RDMA_WRITE)
    wr.set_wr_rdma(peer['rkey'], peer['addr'] + half)

    def send(i):
        mr.write(bytes([(i + 1) & 0xFF]), 1, size - 1)
        qp.post_send(wr)
        successes(cq, 1)

    def receive(i):
        while mr.read(1, half + size - 1)[0] != (i + 1) & 0xFF:
            pass

    return ping_pong(send, receive)


def message_lat(qp, cq, receiver, wr, header=0):
    recv = RecvWR(num_sge=1, sg=[SGE(mr.buf + half, header + size, mr.lkey)])
    post_recv = receiver.post_recv
    post_recv(recv)
    exchange()
    done = {e.IBV_WC_SEND: 0, e.IBV_WC_RECV: 0}

    def until(opcode, i):
        while done[opcode] <= i:
            for wc in cq.poll(2)[1]:
                if wc.status != e.IBV_WC_SUCCESS:
                    raise RuntimeError(f'a completion has status {wc.status}')
                done[wc.opcode] += 1

    def send(i):
        qp.post_send(wr)
        until(e.IBV_WC_SEND, i)

    def receive(i):
        until(e.IBV_WC_RECV, i)
        post_recv(recv)

    return ping_pong(send, receive)


def request_lat(qp, cq, wr):
    times = []
    for _ in range(options['iterations'] if is_client else 0):
        start = time.perf_counter()
        qp.post_send(wr)
        successes(cq, 1)
        times.append((time.perf_counter() - start) * 1e6)
    return summary(times) if is_client else None


def awaited_lat():
    """Each side sleeps until its message is there, as ibv_rc_pingpong -e."""
    channel = CompChannel(context)
    cq = CQ(context, 32, None, channel, 0)
    qp, _ = queue_pair(cq)
    cq.req_notify()
    wr = sends()
    recv = RecvWR(num_sge=1, sg=[SGE(mr.buf + half, size, mr.lkey)])
    qp.post_recv(recv)
    exchange()
    total = options['iterations']
    received = sent = 0
    start = time.perf_counter()
    if is_client:
        qp.post_send(wr)
    while received < total or sent < total:
        channel.get_cq_event(cq)
        cq.ack_events(1)
        cq.req_notify()
        for wc in cq.poll(2)[1]:
            if wc.status != e.IBV_WC_SUCCESS:
                raise RuntimeError(f'a completion has status {wc.status}')
            if wc.opcode == e.IBV_WC_SEND:
                sent += 1
                continue
            received += 1
            if received < total:
                qp.post_recv(recv)
            if received < total or not is_client:
                qp.post_send(wr)
    mean = (time.perf_counter() - start) * 1e6 / total / 2
    return {'best': mean, 'typical': mean}


cq = CQ(context, 32)
qp, peer = queue_pair(cq)
results = {}
exchange()
results['writeLat'] = write_lat(qp, cq, peer)
exchange()
results['sendLat'] = message_lat(qp, cq, qp, sends())

datagrams, other = queue_pair(cq, e.IBV_QPT_UD)
to = sends()
to.set_wr_ud(AH(pd, attr=other['address']), other['qpn'], QKEY)
results['udLat'] = message_lat(datagrams, cq, datagrams, to, GRH_BYTES)

srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=1)))
shared, _ = queue_pair(cq, srq=srq)
results['srqLat'] = message_lat(shared, cq, srq, sends())

read = sends(e.IBV_WR_RDMA_READ, at=half)
read.set_wr_rdma(peer['rkey'], peer['addr'])
exchange()
results['readLat'] = request_lat(qp, cq, read)
add = sends(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, at=half)
add.set_wr_atomic(peer['rkey'], peer['addr'], 1, 0)
exchange()
results['atomicLat'] = request_lat(qp, cq, add)
exchange()
results['awaitedLat'] = awaited_lat()
exchange()
if is_client:
    print(json.dumps(results))
# In an order that Python does not know.
for each in (datagrams, shared, qp, srq):
    each.close()
context.close()
