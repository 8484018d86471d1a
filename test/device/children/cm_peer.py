# The other side of two connections, by pyverbs: cm_peer.py ADDRESS PORT OWN-ADDRESS SERVER-PORT
# Connects from its own address to the port, then listens at the other one. Each time it receives a message of 64 bytes, and
# sends one.
import sys

import pyverbs.cm_enums as ce
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

address, port, own, server_port = sys.argv[1:]


def attr():
    return QPInitAttr(cap=QPCap(max_send_wr=1, max_recv_wr=1))


def talk(role, cmid, start):
    received, sent = cmid.reg_msgs(64), cmid.reg_msgs(64)
    cmid.post_recv(received)
    start()
    sent.write(role.encode(), len(role))
    cmid.post_send(sent)
    cmid.get_send_comp()
    cmid.get_recv_comp()
    print(role, 'received', received.read(12, 0).decode(), flush=True)
    cmid.disconnect()


active = AddrInfo(src=own, dst=address, dst_service=port, port_space=ce.RDMA_PS_TCP)
client = CMID(creator=active, qp_init_attr=attr())
talk('client', client, client.connect)

passive = AddrInfo(src=address, src_service=server_port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
listener = CMID(creator=passive, qp_init_attr=attr())
listener.listen()
server = listener.get_request()
talk('server', server, server.accept)
