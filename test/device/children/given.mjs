// Asks for what the software device only takes note of, on Ethernet or InfiniBand. Its log, on stderr, shows what reached
// the kernel; stdout, as JSON, how that ended.
import { fstatSync, ftruncateSync, openSync, rmSync } from 'node:fs';
import { importDmabuf } from '../../../dist/gpu/index.js';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  mlx5dv,
  openDevice,
  QpCreateFlags,
  QpState,
  QpType,
  readDatagram,
  WrOpcode,
} from '../../../dist/index.js';

const context = openDevice(process.env.DEVICE_A);
const pd = context.allocPd();
const cq = context.createCq(1000);
const found = {};

function codeOf(call) {
  try {
    call();
    return 'ok';
  } catch (error) {
    return error.code;
  }
}

const onEthernet = async () => {
  for (const compVector of [0, 3, 7]) context.createCq(100, { compVector });
  context.createCqEx(50, { compVector: 5 });

  const { LOCAL_WRITE, RELAXED_ORDERING, HUGETLB, ON_DEMAND, REMOTE_READ } = AccessFlags;
  for (const access of [LOCAL_WRITE | RELAXED_ORDERING, REMOTE_READ | HUGETLB, LOCAL_WRITE | ON_DEMAND])
    pd.allocSync(8192, { access });

  // What stands for a DMA-BUF: a file, which its number names.
  const path = `/dev/shm/node-rdma-${process.pid}-given`;
  const fd = openSync(path, 'wx+');
  rmSync(path);
  ftruncateSync(fd, 65_536);
  found.dmabuf = fstatSync(fd).ino;
  await importDmabuf(pd, fd);
  await importDmabuf(pd, fd, {
    offset: 12_345,
    length: 100,
    iova: 0x7f00_0000_0039n,
    access: LOCAL_WRITE | REMOTE_READ,
  });
  pd.regDmabufMrSync(fd, { offset: 4096, length: 8192, iova: 2n ** 40n, access: LOCAL_WRITE | RELAXED_ORDERING });

  const made = {};
  for (const [name, more] of Object.entries({
    BLOCK_SELF_MCAST_LB: { createFlags: QpCreateFlags.BLOCK_SELF_MCAST_LB },
    SOURCE_QPN: { sourceQpn: 0x1234 },
    SCATTER_FCS: { createFlags: QpCreateFlags.SCATTER_FCS },
  })) {
    made[name] = codeOf(() => pd.createQp({ sendCq: cq, qpType: QpType.UD, ...more }));
  }

  const [a, b] = [pd.createQp({ sendCq: cq }), pd.createQp({ sendCq: cq })];
  const [infoA, infoB] = [connectionInfo(a), connectionInfo(b)];
  await connectQueuePair(a, infoA, infoB);
  await connectQueuePair(b, infoB, infoA);
  const limits = [{ rateLimit: 5000 }, { rateLimit: 7000, maxBurstSz: 3000, typicalPktSz: 1500 }];
  found.limits = limits.map((limit) => codeOf(() => a.modifyRateLimit(limit)));
  mlx5dv.modifyQpUdpSport(a, 55_555);
  mlx5dv.modifyQpLagPort(a, 2);
  found.made = made;
};

const onInfiniBand = async () => {
  const qp = pd.createQp({ sendCq: cq });
  qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
  const path = { pathMtu: 5, destQpNum: qp.qpNum, rqPsn: 0, maxDestRdAtomic: 1, minRnrTimer: 12 };
  const altAhAttr = { dlid: 2, sl: 3, srcPathBits: 1, portNum: 1 };
  qp.modifySync({
    qpState: QpState.RTR,
    ...path,
    ahAttr: { dlid: 1, portNum: 1 },
    altAhAttr,
    altPkeyIndex: 4,
    altPortNum: 1,
    altTimeout: 9,
  });
  const { altPkeyIndex, altPortNum, altTimeout, altAhAttr: alternate } = qp.query();
  found.alternate = { altPkeyIndex, altPortNum, altTimeout, altAhAttr: alternate };

  const ud = pd.createQp({ sendCq: cq, qpType: QpType.UD });
  ud.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: 0x1234 });
  ud.modifySync({ qpState: QpState.RTR });
  ud.modifySync({ qpState: QpState.RTS, sqPsn: 0 });
  const mr = pd.allocSync(4096);
  ud.postRecv({ wrId: 1, sgList: mr.slice(0, 1024) });
  const { gid, gidIndex } = context.queryGidEx(1, 0);
  const ah = pd.createAh({ dlid: 1, sl: 6, portNum: 1, grh: { dgid: gid, sgidIndex: gidIndex } });
  mr.buffer.write('level', 2048);
  ud.postSend({
    wrId: 2,
    opcode: WrOpcode.SEND,
    sgList: mr.slice(2048, 5),
    ah,
    remoteQpn: ud.qpNum,
    remoteQkey: 0x1234,
  });
  for (let left = 2; left > 0; ) {
    for (const wc of cq.pollWc(2)) {
      left--;
      if (wc.wrId === 1) found.received = { sl: wc.sl, text: readDatagram(wc, mr.buffer).payload.toString() };
    }
  }
};

await (process.env.MLX5MODEL_LINK === 'ib' ? onInfiniBand() : onEthernet());
console.log(JSON.stringify(found));
context.close({ cascade: true });
