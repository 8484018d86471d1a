import { describe, expect, it } from 'vitest';
import { QpAttrMask, QpState, QpType } from '../../lib/index.ts';
import { DCI, DCT, explainTransition } from '../../lib/verbs/qp-transitions.ts';

const M = QpAttrMask;
const S = QpState;
type State = keyof typeof QpState;

/** What ibv_modify_qp(3) says of RC: what each transition needs. */
const needs: [State, State, (keyof typeof QpAttrMask)[]][] = [
  ['RESET', 'INIT', ['PKEY_INDEX', 'PORT', 'ACCESS_FLAGS']],
  ['INIT', 'INIT', []],
  ['INIT', 'RTR', ['AV', 'PATH_MTU', 'DEST_QPN', 'RQ_PSN', 'MAX_DEST_RD_ATOMIC', 'MIN_RNR_TIMER']],
  ['RTR', 'RTS', ['SQ_PSN', 'MAX_QP_RD_ATOMIC', 'RETRY_CNT', 'RNR_RETRY', 'TIMEOUT']],
  ['RTS', 'RTS', []],
  ['RTS', 'SQD', []],
  ['SQD', 'SQD', []],
  ['SQD', 'RTS', []],
];

/** What the kernel's driver of mlx5 says of dynamically connected transport. */
const dynamic: [string, number, State, State, (keyof typeof QpAttrMask)[], (keyof typeof QpAttrMask)[]][] = [
  ['DCI', DCI, 'RESET', 'INIT', ['PKEY_INDEX', 'PORT'], []],
  ['DCI', DCI, 'INIT', 'INIT', [], ['PKEY_INDEX', 'PORT']],
  ['DCI', DCI, 'INIT', 'RTR', ['PATH_MTU'], ['PKEY_INDEX', 'AV']],
  ['DCI', DCI, 'RTR', 'RTS', ['SQ_PSN', 'TIMEOUT', 'RETRY_CNT', 'RNR_RETRY', 'MAX_QP_RD_ATOMIC'], ['MIN_RNR_TIMER']],
  ['DCI', DCI, 'RTS', 'RTS', [], ['MIN_RNR_TIMER']],
  ['DCT', DCT, 'RESET', 'INIT', ['PKEY_INDEX', 'PORT', 'ACCESS_FLAGS'], []],
  ['DCT', DCT, 'INIT', 'RTR', ['MIN_RNR_TIMER', 'AV', 'PATH_MTU'], []],
];

const bits = (names: (keyof typeof QpAttrMask)[]): number => names.reduce((mask, name) => mask | M[name], 0);

describe('explainTransition', () => {
  it.each(needs)('finds nothing wrong with %s -> %s when it has what it needs', (from, to, names) => {
    expect(explainTransition(QpType.RC, S[from], S[to], bits(names) | M.STATE)).toBeUndefined();
  });

  it.each(needs.flatMap(([from, to, names]) => names.map((name) => [from, to, name, names] as const)))(
    'names what %s -> %s lacks: %s',
    (from, to, name, names) => {
      const mask = M.STATE | bits(names.filter((other) => other !== name));
      expect(explainTransition(QpType.RC, S[from], S[to], mask)).toBe(`${from} -> ${to} needs ${name}`);
    },
  );

  it('names what a transition does not take', () => {
    const init = M.STATE | M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS;
    expect(explainTransition(QpType.RC, S.RESET, S.INIT, init | M.QKEY)).toBe('RESET -> INIT does not take QKEY');
    expect(explainTransition(QpType.UD, S.RESET, S.INIT, init)).toBe(
      'RESET -> INIT needs QKEY; RESET -> INIT does not take ACCESS_FLAGS',
    );
    expect(explainTransition(QpType.RC, S.RTS, S.SQD, M.STATE | M.PORT)).toBe('RTS -> SQD does not take PORT');
    expect(explainTransition(QpType.RC, S.RTS, S.SQD, M.STATE | M.EN_SQD_ASYNC_NOTIFY)).toBeUndefined();
  });

  it('knows of every pair of states whether there is such a transition', () => {
    const possible = new Set(needs.map(([from, to]) => `${from}-${to}`));
    for (const from of Object.keys(S) as State[]) {
      for (const to of Object.keys(S) as State[]) {
        const explained = explainTransition(QpType.RC, S[from], S[to], M.STATE);
        if (to === 'RESET' || (to === 'ERR' && from !== 'RESET')) expect(explained).toBeUndefined();
        else if (from === 'SQE' && to === 'RTS') expect(explained).toBeUndefined();
        else if (!possible.has(`${from}-${to}`)) expect(explained).toBe(`there is no transition ${from} -> ${to}`);
        else expect(explained ?? 'needs').toContain('needs');
      }
    }
  });

  const ofXrc: [State, State, 'XRC_SEND' | 'XRC_RECV', (keyof typeof QpAttrMask)[]][] = [
    ['RESET', 'INIT', 'XRC_SEND', ['PKEY_INDEX', 'PORT', 'ACCESS_FLAGS']],
    ['RESET', 'INIT', 'XRC_RECV', ['PKEY_INDEX', 'PORT', 'ACCESS_FLAGS']],
    ['INIT', 'RTR', 'XRC_SEND', ['AV', 'PATH_MTU', 'DEST_QPN', 'RQ_PSN']],
    ['INIT', 'RTR', 'XRC_RECV', ['AV', 'PATH_MTU', 'DEST_QPN', 'RQ_PSN', 'MAX_DEST_RD_ATOMIC', 'MIN_RNR_TIMER']],
    ['RTR', 'RTS', 'XRC_SEND', ['SQ_PSN', 'TIMEOUT', 'RETRY_CNT', 'RNR_RETRY', 'MAX_QP_RD_ATOMIC']],
    ['RTR', 'RTS', 'XRC_RECV', ['SQ_PSN', 'TIMEOUT']],
  ];
  it.each(ofXrc)('knows what %s -> %s needs of %s', (from, to, type, names) => {
    const mask = bits(names) | M.STATE;
    expect(explainTransition(QpType[type], S[from], S[to], mask)).toBeUndefined();
    for (const name of names) {
      expect(explainTransition(QpType[type], S[from], S[to], mask & ~M[name])).toBe(`${from} -> ${to} needs ${name}`);
    }
    expect(explainTransition(QpType[type], S[from], S[to], mask | M.QKEY)).toBe(`${from} -> ${to} does not take QKEY`);
  });

  it('asks raw packets for a port only, lets them have a pace, and leaves the types of providers alone', () => {
    const raw = QpType.RAW_PACKET;
    expect(explainTransition(raw, S.RESET, S.INIT, M.STATE)).toBe('RESET -> INIT needs PORT');
    expect(explainTransition(raw, S.RESET, S.INIT, M.STATE | M.PORT)).toBeUndefined();
    for (const to of [S.RTR, S.RTS]) expect(explainTransition(raw, to - 1, to, M.STATE)).toBeUndefined();
    expect(explainTransition(raw, S.RTS, S.RTS, M.RATE_LIMIT)).toBeUndefined();
    expect(explainTransition(raw, S.RTR, S.RTS, M.STATE | M.SQ_PSN)).toBe('RTR -> RTS does not take SQ_PSN');
    expect(explainTransition(QpType.DRIVER, S.RESET, S.INIT, M.STATE)).toBeUndefined();
  });

  it('lets RESET and ERR be entered without attributes only', () => {
    expect(explainTransition(QpType.RC, S.RTS, S.ERR, M.STATE | M.SQ_PSN | M.PORT)).toBe(
      'RTS -> ERR takes no attributes, but was given PORT | SQ_PSN',
    );
    expect(explainTransition(QpType.RC, S.ERR, S.RESET, M.STATE)).toBeUndefined();
  });

  it.each(dynamic)('knows what the %s needs and takes: %s, %s -> %s', (_end, type, from, to, needs, takes) => {
    expect(explainTransition(type, S[from], S[to], bits(needs) | M.STATE)).toBeUndefined();
    expect(explainTransition(type, S[from], S[to], bits([...needs, ...takes]) | M.STATE)).toBeUndefined();
    for (const name of Object.keys(M) as (keyof typeof QpAttrMask)[]) {
      if (name === 'STATE') continue;
      if (needs.includes(name)) {
        const mask = M.STATE | bits(needs.filter((other) => other !== name));
        expect(explainTransition(type, S[from], S[to], mask)).toBe(`${from} -> ${to} needs ${name}`);
      } else if (!takes.includes(name)) {
        const mask = M.STATE | bits(needs) | M[name];
        expect(explainTransition(type, S[from], S[to], mask)).toBe(`${from} -> ${to} does not take ${name}`);
      }
    }
  });

  it('knows no others of dynamically connected transport, and of a target neither RESET nor ERR', () => {
    for (const [end, type] of [['DCI', DCI] as const, ['DCT', DCT] as const]) {
      for (const from of Object.keys(S) as State[]) {
        for (const to of Object.keys(S) as State[]) {
          if (dynamic.some(([e, , f, t]) => e === end && f === from && t === to)) continue;
          const always = end === 'DCI' && (to === 'RESET' || (to === 'ERR' && from !== 'RESET'));
          const expected = always ? undefined : `there is no transition ${from} -> ${to}`;
          expect(explainTransition(type, S[from], S[to], M.STATE)).toBe(expected);
        }
      }
    }
  });
});
