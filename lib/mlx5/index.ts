/**
 * Direct verbs of libmlx5: what ConnectX and BlueField have beyond libibverbs. The functions are those of the C library
 * without `mlx5dv_`; what they make are the objects of verbs. Where the device is of another make each throws EOPNOTSUPP,
 * where there is no libmlx5 `ERR_RDMA_UNAVAILABLE`.
 *
 * @see mlx5dv(7)
 */
export { createCq, type Mlx5dvCqInitAttr } from './completion-queue.ts';
export { DctQueuePair } from './dct-queue-pair.ts';
export {
  getClockInfo,
  isSupported,
  type Mlx5dvClockInfo,
  type Mlx5dvContext,
  queryDevice,
  tsToNs,
} from './device.ts';
export {
  createQp,
  dciStreamIdReset,
  type Mlx5dvDctInitAttr,
  type Mlx5dvLagPort,
  type Mlx5dvQpInitAttr,
  modifyQpLagPort,
  modifyQpUdpSport,
  queryQpLagPort,
} from './queue-pair.ts';
