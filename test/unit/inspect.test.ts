/** What util.inspect() shows, where no device is needed. */
import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  AddressHandle,
  CompletionChannel,
  CompletionQueue,
  Context,
  Endpoint,
  flagNames,
  MemoryRegion,
  MemorySlice,
  MemoryWindow,
  PostError,
  ProtectionDomain,
  QpState,
  QueuePair,
  RdmaError,
  RecvList,
  RemoteRegion,
  RemoteSlice,
  SendList,
  SharedReceiveQueue,
  TcpListener,
  WcStatus,
  WorkCompletionError,
} from '../../lib/index.ts';
import { flagged, hex, named, nameOf, printed } from '../../lib/inspect.ts';

describe('flagNames', () => {
  it('names each flag, and gives what has no name in hexadecimal', () => {
    expect(flagNames(AccessFlags, 0)).toBe('0');
    expect(flagNames(AccessFlags, AccessFlags.REMOTE_READ)).toBe('REMOTE_READ');
    expect(flagNames(AccessFlags, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_ATOMIC)).toBe(
      'LOCAL_WRITE | REMOTE_ATOMIC',
    );
    expect(flagNames(AccessFlags, 1 + 0x8000_0000)).toBe('LOCAL_WRITE | 0x80000000');
    expect(flagNames(AccessFlags, 1 | 0x8000_0000)).toBe('LOCAL_WRITE | 0x80000000');
    expect(flagNames(AccessFlags, 2n + (1n << 63n))).toBe('REMOTE_WRITE | 0x8000000000000000');
  });
});

describe('nameOf', () => {
  it('gives the number where there is no name', () => {
    expect(nameOf(QpState, QpState.SQD)).toBe('SQD');
    expect(nameOf(QpState, 77)).toBe('77');
  });
});

describe('a plain object of attributes', () => {
  interface Attr {
    state: number;
    flags: number;
    key: number;
    unnamed: number;
  }
  const print = printed<Attr>('Attr', {
    state: named(QpState, (state) => (state === QpState.ERR ? 'all is lost' : 'rts')),
    flags: flagged(AccessFlags),
    key: hex,
  });
  const attr = () => print({ state: QpState.ERR, flags: 3, key: 255, unnamed: 5 });

  it('is printed with names', () => {
    expect(inspect(attr())).toBe(
      'Attr { state: ERR (all is lost), flags: LOCAL_WRITE | REMOTE_WRITE, key: 0xff, unnamed: 5 }',
    );
    expect(inspect(print({ ...attr(), state: QpState.RTS }))).toContain('{ state: RTS, flags');
  });

  it('stays plain data', () => {
    const plain = { state: QpState.ERR, flags: 3, key: 255, unnamed: 5 };
    expect(attr()).toStrictEqual(plain);
    assert.deepStrictEqual(attr(), plain);
    expect(JSON.stringify(attr())).toBe(JSON.stringify(plain));
    expect(structuredClone(attr())).toStrictEqual(plain);
    expect(Reflect.ownKeys({ ...attr() })).toEqual(Object.keys(plain));
  });

  it('shows what the program has put there since', () => {
    const changed = Object.assign(attr(), { state: 'none', flags: 1.5, more: [1] });
    expect(inspect(changed)).toBe('Attr { state: none (rts), flags: 1.5, key: 0xff, unnamed: 5, more: [ 1 ] }');
  });

  it('obeys the options of util.inspect', () => {
    expect(inspect({ attr: attr() }, { depth: 0 })).toBe('{ attr: [Attr] }');
    expect(inspect(attr(), { compact: false }).split('\n')).toHaveLength(6);
    expect(inspect(attr(), { colors: true })).toContain('key: \u001b[33m0xff\u001b[39m');
    expect(inspect([attr()], { compact: false })).toMatch(/^\[\n {2}Attr \{\n {4}state: ERR/);
  });
});

describe('a remote region', () => {
  it('is printed as its address, length and key', () => {
    const region = new RemoteRegion({ addr: '0xffffffffffff0000', rkey: 0xffff_ffff, length: 4096 });
    expect(inspect(region)).toBe('RemoteRegion { addr: 0xffffffffffff0000, length: 4096, rkey: 0xffffffff }');
    expect(inspect(region.slice(16, 8))).toBe(
      'RemoteSlice { offset: 16, length: 8, addr: 0xffffffffffff0010, rkey: 0xffffffff }',
    );
    expect(inspect({ a: { region } }, { depth: 1 })).toContain('[RemoteRegion]');
  });
});

describe('an error', () => {
  it('shows its fields once', () => {
    const refused = inspect(new PostError('ibv_post_send', 12, 3, 'the queue is full'));
    expect(refused).toMatch(/^PostError: ibv_post_send ENOMEM: .*: the queue is full\n/);
    expect(refused).toMatch(/code: 'ENOMEM',\s+errno: -12,\s+syscall: 'ibv_post_send',\s+index: 3\s/);
    expect(inspect(new RdmaError('ibv_reg_mr', 22))).not.toContain('detail');
    const wc = { status: WcStatus.RETRY_EXC_ERR, vendorErr: 0x81, qpNum: 17 };
    const failed = inspect(new WorkCompletionError('write', wc, 'RETRY_EXC_ERR', 'transport retry counter exceeded'));
    expect(failed).toMatch(/^WorkCompletionError: write failed: .*IBV_WC_RETRY_EXC_ERR, vendor error 0x81/);
    expect(failed).toMatch(/statusName: 'RETRY_EXC_ERR',\s+vendorErr: 129,\s+qpNum: 17\s/);
  });
});

describe('util.inspect', () => {
  const classes = {
    AddressHandle,
    CompletionChannel,
    CompletionQueue,
    Context,
    Endpoint,
    MemoryRegion,
    MemorySlice,
    MemoryWindow,
    ProtectionDomain,
    QueuePair,
    RecvList,
    RemoteRegion,
    RemoteSlice,
    SendList,
    SharedReceiveQueue,
    TcpListener,
  };

  it.each(Object.entries(classes))('does not throw at what only looks like a %s', (name, { prototype }) => {
    expect(inspect(Object.create(prototype))).toMatch(new RegExp(`^${name} \\{`));
    expect(inspect(prototype)).toEqual(expect.any(String));
    expect(inspect(new Proxy(Object.create(prototype), {}), { showProxy: true })).toEqual(expect.any(String));
  });
});
