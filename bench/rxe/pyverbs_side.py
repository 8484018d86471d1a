# As side.mjs, for the test writeLat, with pyverbs: python3 pyverbs_side.py '{"role": ..., ...}'
import json
import socket
import statistics
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

options = json.loads(sys.argv[1])
is_client = options['role'] == 'client'
size = options['latencyBytes']
gid_index = options['gidIndex']

context = Context(name=options['device'])
pd = PD(context)
cq = CQ(context, 16)
mr = MR(pd, 2 * size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
mr.write(bytes(2 * size), 2 * size)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=16, max_recv_wr=16)))

if is_client:
    connection = socket.create_connection(('127.0.0.1', options['port']))
else:
    listener = socket.create_server(('127.0.0.1', 0))
    print(listener.getsockname()[1], flush=True)
    connection = listener.accept()[0]
stream = connection.makefile('rw')


def exchange(value):
    stream.write(json.dumps(value) + '\n')
    stream.flush()
    return json.loads(stream.readline())


peer = exchange({'qpn': qp.qp_num, 'gid': context.query_gid(1, gid_index).gid, 'addr': mr.buf, 'rkey': mr.rkey})
attr = QPAttr(port_num=1)
attr.dest_qp_num = peer['qpn']
attr.path_mtu = e.IBV_MTU_1024
attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
attr.min_rnr_timer = 12
attr.timeout = 14
attr.retry_cnt = attr.rnr_retry = 7
attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
route = GlobalRoute(dgid=GID(peer['gid']), sgid_index=gid_index, hop_limit=64)
attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
qp.to_rts(attr)
exchange('ready')

wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(mr.buf, size, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
wr.set_wr_rdma(peer['rkey'], peer['addr'] + size)


def send(i):
    mr.write(bytes([(i + 1) & 0xFF]), 1, size - 1)
    qp.post_send(wr)
    while True:
        found, completions = cq.poll()
        if found:
            break
    if completions[0].status != e.IBV_WC_SUCCESS:
        raise RuntimeError(f'request {i}: a completion has status {completions[0].status}')


def receive(i):
    while mr.read(1, 2 * size - 1)[0] != (i + 1) & 0xFF:
        pass


times = []
for i in range(options['iterations']):
    start = time.perf_counter()
    if is_client:
        send(i)
    receive(i)
    if not is_client:
        send(i)
    times.append((time.perf_counter() - start) * 1e6 / 2)
exchange('done')
if is_client:
    print(json.dumps({'writeLat': {'best': min(times), 'typical': statistics.median(times)}}))
