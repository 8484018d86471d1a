# One side of a connection, by pyverbs: it does what it is told on stdin, a JSON object a line, and answers each on stdout.
# Immediate data and keys are in host byte order in what it is told and says, addresses and 64-bit values in hexadecimal.
import json
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

BYTES = 16384
DEADLINE_S = 40
ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
          e.IBV_ACCESS_REMOTE_ATOMIC)
TYPES = {'RC': e.IBV_QPT_RC, 'UD': e.IBV_QPT_UD}


class Peer:
    def open(self, device, type='RC', srq=False):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 64)
        self.mr = MR(self.pd, BYTES, ACCESS | e.IBV_ACCESS_MW_BIND)
        self.mr.write(bytes(BYTES), BYTES)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=1))) if srq else None
        init = QPInitAttr(qp_type=TYPES[type], scq=self.cq, rcq=self.cq, srq=self.srq,
                          cap=QPCap(max_send_wr=16, max_recv_wr=16))
        self.qp = QP(self.pd, init)
        self.completions = []
        return {'qpNum': self.qp.qp_num, 'addr': hex(self.mr.buf), 'rkey': self.mr.rkey, 'length': BYTES}

    def connect(self, qpNum, gid, gidIndex, psn, mtu):
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = qpNum
        attr.path_mtu = mtu
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 1
        attr.timeout = 14
        attr.retry_cnt = attr.rnr_retry = 7
        attr.rq_psn = attr.sq_psn = psn
        attr.qp_access_flags = ACCESS
        attr.ah_attr = self.address(gid, gidIndex)
        self.qp.to_rts(attr)

    def ready(self, qkey, psn):
        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        attr.sq_psn = psn
        self.qp.to_rts(attr)

    def write(self, offset, data):
        data = bytes.fromhex(data)
        self.mr.write(data, len(data), offset)

    def read(self, offset, length):
        return self.mr.read(length, offset).hex()

    def recv(self, wrId, offset, length):
        wr = RecvWR(wr_id=wrId, num_sge=1, sg=[self.sge(offset, length)])
        (self.srq or self.qp).post_recv(wr)

    def send(self, opcode, wrId=0, offset=0, length=0, imm=None, invalidate=None, remote=None, atomic=None, to=None):
        sg = [self.sge(offset, length)] if length else None
        wr = SendWR(wr_id=wrId, opcode=getattr(e, f'IBV_WR_{opcode}'), num_sge=1 if sg else 0, sg=sg,
                    send_flags=e.IBV_SEND_SIGNALED)
        if imm is not None:
            wr.imm_data = socket.htonl(imm)
        if invalidate is not None:
            wr.imm_data = invalidate
        if remote and atomic:
            wr.set_wr_atomic(remote['rkey'], int(remote['addr'], 16), *[int(value, 16) for value in atomic])
        elif remote:
            wr.set_wr_rdma(remote['rkey'], int(remote['addr'], 16))
        if to:
            wr.set_wr_ud(self.ah, to['qpNum'], to['qkey'])
        self.qp.post_send(wr)

    # Waits for `count` completions.
    def poll(self, count=1):
        found = []
        end = time.monotonic() + DEADLINE_S
        while len(found) < count:
            _, completions = self.cq.poll(count - len(found))
            found += completions
            if time.monotonic() > end:
                raise TimeoutError(f'{len(found)} of {count} completions came within {DEADLINE_S} s')
        self.completions = found
        return [self.completion(wc) for wc in found]

    def completion(self, wc):
        said = {'wrId': wc.wr_id, 'status': wc.status, 'opcode': wc.opcode, 'byteLen': wc.byte_len, 'srcQp': wc.src_qp}
        if wc.status == e.IBV_WC_SUCCESS and wc.wc_flags & e.IBV_WC_WITH_IMM:
            said['imm'] = socket.ntohl(wc.imm_data)
        # rdma_rxe sets the kernel's bit for it, which is another one than IBV_WC_WITH_INV: the asker knows what to expect.
        said['invalidated'] = wc.imm_data
        return said

    # Binds a window to a part of the memory, by the verb or by a work request, and answers with its key.
    def bind(self, type, offset, length):
        if not hasattr(self, 'mw'):
            self.mw = MW(self.pd, type)
        access = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        info = MWBindInfo(self.mr, self.mr.buf + offset, length, access)
        if type == e.IBV_MW_TYPE_1:
            self.qp.bind_mw(self.mw, MWBind(info, e.IBV_SEND_SIGNALED))
            rkey = self.mw.rkey
        else:
            wr = SendWR(opcode=e.IBV_WR_BIND_MW)
            wr.set_bind_wr(self.mw, info)
            self.qp.post_send(wr)
            rkey = wr.rkey
        return {'addr': hex(self.mr.buf + offset), 'rkey': rkey, 'length': length}

    # The address to send datagrams to: by GID, or that of the sender of the last completion, whose header is in memory.
    def address_to(self, gid, gidIndex):
        self.ah = AH(self.pd, attr=self.address(gid, gidIndex))

    def answer_to(self, offset):
        self.ah = AH(self.pd, wc=self.completions[-1], grh=self.mr.buf + offset, port_num=1)

    def address(self, gid, gidIndex):
        route = GlobalRoute(dgid=GID(gid), sgid_index=gidIndex, hop_limit=64)
        return AHAttr(gr=route, is_global=1, port_num=1)

    def sge(self, offset, length):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def close(self):
        self.qp.close()
        self.context.close()


for line in sys.stdin:
    asked = json.loads(line)
    try:
        if asked['do'] == 'open':
            peer = Peer()
        answer = {'result': getattr(peer, asked.pop('do'))(**asked)}
    except Exception as error:
        answer = {'error': repr(error)}
    print(json.dumps(answer), flush=True)
