"""The other side of a Unix socket, by another language: takes a descriptor and answers, or offers one, or holds one."""
import os
import sys

mode, argument = sys.argv[1], sys.argv[2]
if mode == "hold":
    # A file of huge pages, or of ordinary ones, that somebody else takes out of this process.
    flags = os.MFD_ALLOW_SEALING | (getattr(os, "MFD_HUGETLB", 4) if argument == "huge" else 0)
    fd = os.memfd_create("held", flags)
    os.ftruncate(fd, 1 << 21)
    if argument != "huge":
        os.pwrite(fd, b"held by another", 0)
    print(fd, flush=True)
    sys.stdin.read()
else:
    import mmap
    import socket

    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(argument)
    data, fds, _, _ = socket.recv_fds(peer, 1024, 4)
    with mmap.mmap(fds[0], 4096) as memory:
        memory[0:5] = data[::-1]
    made = os.memfd_create("made")
    os.ftruncate(made, 8192)
    os.pwrite(made, b"made by python", 100)
    socket.send_fds(peer, [b"two"], [fds[0], made])
