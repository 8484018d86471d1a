# The other side of a connection, by pyverbs: cm_peer.py server|client ADDRESS PORT [OWN-ADDRESS]
# Receives a message of 64 bytes, and sends one.
import sys

import pyverbs.cm_enums as ce
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

role, address, port = sys.argv[1:4]
attr = QPInitAttr(cap=QPCap(max_send_wr=1, max_recv_wr=1))
if role == 'server':
    passive = AddrInfo(src=address, src_service=port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=passive, qp_init_attr=attr)
    listener.listen()
    print('listening', flush=True)
    cmid = listener.get_request()
else:
    active = AddrInfo(src=sys.argv[4], dst=address, dst_service=port, port_space=ce.RDMA_PS_TCP)
    cmid = CMID(creator=active, qp_init_attr=attr)
received, sent = cmid.reg_msgs(64), cmid.reg_msgs(64)
cmid.post_recv(received)
if role == 'server':
    cmid.accept()
else:
    cmid.connect()
sent.write(role.encode(), len(role))
cmid.post_send(sent)
cmid.get_send_comp()
cmid.get_recv_comp()
print('received', received.read(12, 0).decode(), flush=True)
cmid.disconnect()
