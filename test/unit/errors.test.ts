import { constants } from 'node:os';
import { getSystemErrorName, inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { BusyError, PostError, RdmaClosedError, RdmaError, RdmaUnavailableError } from '../../lib/index.ts';

describe('RdmaError', () => {
  it('has the fields of a system error of Node', () => {
    const error = new RdmaError('ibv_reg_mr', constants.errno.ENOMEM);
    expect(error).toBeInstanceOf(Error);
    expect({ ...error, name: error.name, message: error.message }).toMatchObject({
      name: 'RdmaError',
      code: 'ENOMEM',
      errno: -12,
      syscall: 'ibv_reg_mr',
      message: 'ibv_reg_mr ENOMEM: not enough memory',
    });
    expect(getSystemErrorName(error.errno)).toBe('ENOMEM');
    expect(inspect(error)).toContain('ibv_reg_mr ENOMEM');
  });

  it('says EOPNOTSUPP and EAGAIN, as the man pages do, where two names share a number', () => {
    expect(new RdmaError('ibv_reg_mr', constants.errno.EOPNOTSUPP).code).toBe('EOPNOTSUPP');
    expect(new RdmaError('ibv_reg_mr', constants.errno.EAGAIN).code).toBe('EAGAIN');
    expect(new RdmaError('ibv_reg_mr', constants.errno.EOPNOTSUPP).message).toContain('not supported by this device');
  });

  it('knows every errno of this system by its name', () => {
    for (const errno of Object.values(constants.errno)) {
      const { code, message } = new RdmaError('ibv_open_device', errno);
      expect(code).toMatch(/^E[A-Z0-9]+$/);
      expect(constants.errno[code as keyof typeof constants.errno]).toBe(errno);
      expect(message).not.toContain('undefined');
    }
  });

  it('makes do with a number that has no name', () => {
    expect(new RdmaError('ibv_poll_cq', 9999)).toMatchObject({ code: 'E9999', errno: -9999 });
  });

  it('says in its message what else is known, and keeps it when more is said', () => {
    const error = new RdmaError('ibv_modify_qp', 22, 'first').explained('second');
    expect(error).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_qp', detail: 'first; second' });
    expect(error.message).toBe('ibv_modify_qp EINVAL: invalid argument: first; second');
    expect(new RdmaError('ibv_modify_qp', 22).explained('only').detail).toBe('only');
  });
});

describe('the other errors', () => {
  it('are told apart by class, name and code', () => {
    const busy = new BusyError('ibv_dealloc_pd', 'in use', [{}]);
    expect(busy).toBeInstanceOf(RdmaError);
    expect(busy).toMatchObject({ name: 'BusyError', code: 'EBUSY', errno: -16, syscall: 'ibv_dealloc_pd' });
    expect(busy.children.length).toBe(1);
    const post = new PostError('ibv_post_send', 12, 3, 'full');
    expect(post).toBeInstanceOf(RdmaError);
    expect(post).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: 3 });
    const closed = new RdmaClosedError('CompletionQueue');
    expect(closed).not.toBeInstanceOf(RdmaError);
    expect(closed).toMatchObject({ name: 'RdmaClosedError', code: 'ERR_RDMA_CLOSED' });
    expect(closed.message).toBe('CompletionQueue is closed');
    const cause = new Error('cause');
    const unavailable = new RdmaUnavailableError('nothing here', { cause });
    expect(unavailable).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE', cause });
  });
});
