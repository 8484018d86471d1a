/*
 * Commands to the device itself, which the kernel's driver passes on (DEVX): what libmlx5 asks beyond verbs. Layouts:
 * ConnectX programmer's reference manual; fields are named by their bit in the big-endian mailbox.
 */
#include <errno.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { QUERY_HCA_CAP = 0x100, RTS2RTS_QP = 0x505, QUERY_QP = 0x50b, QUERY_LAG = 0x842 };
enum { STATUS_OK = 0, BAD_OPERATION = 2, BAD_PARAMETER = 3, BAD_QP_STATE = 0x10 };

#define MAILBOX 4112   /* the longest answer: QUERY_HCA_CAP */
#define GENERAL_CAPS 1 /* op_mod: the current general capabilities */

/* Bits of the general capabilities; those of a queue pair's context begin at QPC in each mailbox that has one. */
enum {
  CAP_QPC_EXTENSION = 418,
  CAP_RTS2RTS_UDP_SPORT = 465,
  CAP_RTS2RTS_LAG_PORT = 466,
  CAP_LAG_PORT_AFFINITY = 760,
  CAP_NUM_LAG_PORTS = 764,
  QPC_LAG_PORT = 196,
  QPC_UDP_SPORT = 656,
  QPC_EXT_STREAM = 2192,
};

static uint64_t bits_at(const uint8_t* p, unsigned bit, unsigned count) {
  uint64_t value = 0;
  for (unsigned i = bit; i < bit + count; i++) value = value << 1 | (p[i / 8] >> (7 - i % 8) & 1);
  return value;
}

static void set_bits(uint8_t* p, unsigned bit, unsigned count, uint64_t value) {
  for (unsigned i = bit + count; i-- > bit; value >>= 1)
    if (value & 1) p[i / 8] |= (uint8_t)(1 << (7 - i % 8));
}

/* The first device is a bond of two ports, the others are not. */
static unsigned lag_ports(const struct ctx* c) { return c->dev == 0 ? 2 : 0; }

static uint8_t general_command(const struct ctx* c, const uint8_t* in, uint8_t* out) {
  switch (bits_at(in, 0, 16)) {
    case QUERY_HCA_CAP:
      if (bits_at(in, 48, 16) != GENERAL_CAPS) return STATUS_OK; /* none of the others */
      set_bits(out, CAP_QPC_EXTENSION, 1, 1);
      set_bits(out, CAP_RTS2RTS_UDP_SPORT, 1, 1);
      set_bits(out, CAP_RTS2RTS_LAG_PORT, 1, 1);
      set_bits(out, CAP_LAG_PORT_AFFINITY, 1, lag_ports(c) > 0);
      set_bits(out, CAP_NUM_LAG_PORTS, 4, lag_ports(c));
      return STATUS_OK;
    case QUERY_LAG: /* active, and each port sends by itself */
      set_bits(out, 93, 3, lag_ports(c) > 0);
      set_bits(out, 124, 4, 1);
      set_bits(out, 116, 4, 2);
      return STATUS_OK;
    default:
      return BAD_OPERATION;
  }
}

static uint8_t query_qp(const struct qp* qp, uint8_t* out) {
  set_bits(out, QPC_LAG_PORT, 4, qp->lag_port);
  set_bits(out, QPC_UDP_SPORT, 16, qp->udp_sport);
  return STATUS_OK;
}

static uint8_t modify_qp(struct qp* qp, const uint8_t* in) {
  uint64_t mask = bits_at(in, 128, 32), mask_95_32 = bits_at(in, 2112, 64);
  if (qp->state != IBV_QPS_RTS) return BAD_QP_STATE;
  if (mask & 1 << 15) {
    uint64_t port = bits_at(in, QPC_LAG_PORT, 4);
    if (port < 1 || port > lag_ports(qp->o.ctx)) return BAD_PARAMETER;
    qp->lag_port = (uint8_t)port;
  }
  if (mask_95_32 & 1 << 2) qp->udp_sport = (uint16_t)bits_at(in, QPC_UDP_SPORT, 16);
  MODEL_LOG("  QP 0x%x: UDP source port %u, port %u of the bond\n", qp->o.id, qp->udp_sport, qp->lag_port);
  if ((mask_95_32 & 1 << 0) && !dc_stream_reset(qp, (uint16_t)bits_at(in, QPC_EXT_STREAM, 16))) return BAD_PARAMETER;
  return STATUS_OK;
}

/* Mailboxes of full length, so that no field lies outside. */
struct mailboxes {
  uint8_t in[MAILBOX], out[MAILBOX];
};

/* A command that the device refuses is EREMOTEIO, and says why in its answer. */
static int answer(struct call* call, uint16_t id, struct mailboxes* box, uint8_t status) {
  box->out[0] = status;
  call_out(call, id, box->out, sizeof box->out);
  return status ? EREMOTEIO : 0;
}

int method_devx_other(struct call* call) {
  struct mailboxes box = {0};
  call_in(call, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, box.in, sizeof box.in);
  return answer(call, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, &box, general_command(call->ctx, box.in, box.out));
}

/* The object must be the one that the mailbox names too. */
static struct qp* qp_of(const struct call* call, uint16_t id, const uint8_t* in, uint64_t operation) {
  struct qp* qp = call_object(call, id, KIND_QP);
  return qp && bits_at(in, 0, 16) == operation && bits_at(in, 72, 24) == qp->o.id ? qp : NULL;
}

int method_devx_obj_query(struct call* call) {
  struct mailboxes box = {0};
  call_in(call, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, box.in, sizeof box.in);
  struct qp* qp = qp_of(call, MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, box.in, QUERY_QP);
  if (!qp) return EINVAL;
  return answer(call, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, &box, query_qp(qp, box.out));
}

int method_devx_obj_modify(struct call* call) {
  struct mailboxes box = {0};
  call_in(call, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, box.in, sizeof box.in);
  struct qp* qp = qp_of(call, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, box.in, RTS2RTS_QP);
  if (!qp) return EINVAL;
  return answer(call, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, &box, modify_qp(qp, box.in));
}
