import { describe, expect, it } from 'vitest';
import { QpAttrMask, QpState, QpType } from '../../lib/index.ts';
import { explainTransition } from '../../lib/verbs/qp-transitions.ts';

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

  it('lets RESET and ERR be entered without attributes only', () => {
    expect(explainTransition(QpType.RC, S.RTS, S.ERR, M.STATE | M.SQ_PSN | M.PORT)).toBe(
      'RTS -> ERR takes no attributes, but was given PORT | SQ_PSN',
    );
    expect(explainTransition(QpType.RC, S.ERR, S.RESET, M.STATE)).toBeUndefined();
  });
});
