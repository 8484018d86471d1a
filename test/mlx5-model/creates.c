/*
 * Creation by the younger command interface, of what the older one creates too: an imported context has no other. Each
 * makes the older command of its attributes.
 */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>

#include "model.h"

enum { DRIVER = 64 }; /* bytes for the driver's part of an answer: more than any */

static void take_driver(const struct call* call, struct command* cmd) {
  cmd->ctx = call->ctx;
  cmd->driver_in = call_in_array(call, UVERBS_ATTR_UHW_IN, &cmd->driver_in_size);
}

int method_cq_create(struct call* call) {
  bool has_channel = call_has(call, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL);
  struct ib_uverbs_ex_create_cq req = {
      .user_handle = call_u64(call, UVERBS_ATTR_CREATE_CQ_USER_HANDLE),
      .cqe = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_CQ_CQE),
      .comp_vector = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR),
      .comp_channel = has_channel ? (int32_t)call_handle(call, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL) : -1,
      .flags = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_CQ_FLAGS)};
  struct {
    struct ib_uverbs_ex_create_cq_resp core;
    uint8_t driver[DRIVER];
  } out = {0};
  struct command cmd = {.in = (const uint8_t*)&req,
                        .in_size = sizeof req,
                        .out = (uint8_t*)&out,
                        .driver_out_offset = sizeof out.core,
                        .out_size = sizeof out};
  take_driver(call, &cmd);
  int err = cmd_ex_create_cq(&cmd);
  if (err) return err;
  call_out_handle(call, UVERBS_ATTR_CREATE_CQ_HANDLE, out.core.base.cq_handle);
  call_out(call, UVERBS_ATTR_CREATE_CQ_RESP_CQE, &out.core.base.cqe, sizeof out.core.base.cqe);
  call_out(call, UVERBS_ATTR_UHW_OUT, out.driver, sizeof out.driver);
  return 0;
}

int method_qp_create(struct call* call) {
  uint32_t flags = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_QP_FLAGS);
  bool has_table = call_has(call, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE);
  bool has_xrcd = call_has(call, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE);
  struct ib_uverbs_qp_cap cap;
  call_in(call, UVERBS_ATTR_CREATE_QP_CAP, &cap, sizeof cap);
  struct ib_uverbs_ex_create_qp req = {
      .user_handle = call_u64(call, UVERBS_ATTR_CREATE_QP_USER_HANDLE),
      .pd_handle = call_handle(call, has_xrcd ? UVERBS_ATTR_CREATE_QP_XRCD_HANDLE : UVERBS_ATTR_CREATE_QP_PD_HANDLE),
      .send_cq_handle = call_handle(call, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE),
      .recv_cq_handle = call_handle(call, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE),
      .srq_handle = call_handle(call, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE),
      .is_srq = call_has(call, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE),
      .max_send_wr = cap.max_send_wr,
      .max_recv_wr = cap.max_recv_wr,
      .max_send_sge = cap.max_send_sge,
      .max_recv_sge = cap.max_recv_sge,
      .max_inline_data = cap.max_inline_data,
      .sq_sig_all = (flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL) != 0,
      .qp_type = (uint8_t)call_u64(call, UVERBS_ATTR_CREATE_QP_TYPE),
      .comp_mask = has_table ? IB_UVERBS_CREATE_QP_MASK_IND_TABLE : 0,
      .create_flags = flags & ~(uint32_t)IB_UVERBS_QP_CREATE_SQ_SIG_ALL,
      .rwq_ind_tbl_handle = call_handle(call, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE)};
  if (call_has(call, UVERBS_ATTR_CREATE_QP_SOURCE_QPN)) {
    req.create_flags |= IBV_QP_CREATE_SOURCE_QPN;
    req.source_qpn = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_QP_SOURCE_QPN);
  }
  struct {
    struct ib_uverbs_ex_create_qp_resp core;
    uint8_t driver[DRIVER];
  } out = {0};
  struct command cmd = {.in = (const uint8_t*)&req,
                        .in_size = sizeof req,
                        .out = (uint8_t*)&out,
                        .driver_out_offset = sizeof out.core,
                        .out_size = sizeof out};
  take_driver(call, &cmd);
  int err = cmd_ex_create_qp(&cmd);
  if (err) return err;
  const struct ib_uverbs_create_qp_resp* made = &out.core.base;
  cap = (struct ib_uverbs_qp_cap){.max_send_wr = made->max_send_wr,
                                  .max_recv_wr = made->max_recv_wr,
                                  .max_send_sge = made->max_send_sge,
                                  .max_recv_sge = made->max_recv_sge,
                                  .max_inline_data = made->max_inline_data};
  call_out_handle(call, UVERBS_ATTR_CREATE_QP_HANDLE, made->qp_handle);
  call_out(call, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof cap);
  call_out(call, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &made->qpn, sizeof made->qpn);
  call_out(call, UVERBS_ATTR_UHW_OUT, out.driver, sizeof out.driver);
  return 0;
}

int method_srq_create(struct call* call) {
  struct ib_uverbs_create_xsrq req = {.user_handle = call_u64(call, UVERBS_ATTR_CREATE_SRQ_USER_HANDLE),
                                      .srq_type = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_SRQ_TYPE),
                                      .pd_handle = call_handle(call, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE),
                                      .max_wr = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_SRQ_MAX_WR),
                                      .max_sge = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_SRQ_MAX_SGE),
                                      .srq_limit = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_SRQ_LIMIT),
                                      .max_num_tags = (uint32_t)call_u64(call, UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS),
                                      .xrcd_handle = call_handle(call, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE),
                                      .cq_handle = call_handle(call, UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE)};
  struct ib_uverbs_create_srq basic = {.user_handle = req.user_handle,
                                       .pd_handle = req.pd_handle,
                                       .max_wr = req.max_wr,
                                       .max_sge = req.max_sge,
                                       .srq_limit = req.srq_limit};
  bool is_basic = req.srq_type == IBV_SRQT_BASIC;
  struct {
    struct ib_uverbs_create_srq_resp core;
    uint8_t driver[DRIVER];
  } out = {0};
  struct command cmd = {.in = is_basic ? (const uint8_t*)&basic : (const uint8_t*)&req,
                        .in_size = is_basic ? sizeof basic : sizeof req,
                        .out = (uint8_t*)&out,
                        .driver_out_offset = sizeof out.core,
                        .out_size = sizeof out};
  take_driver(call, &cmd);
  int err = is_basic ? cmd_create_srq(&cmd) : cmd_create_xsrq(&cmd);
  if (err) return err;
  call_out_handle(call, UVERBS_ATTR_CREATE_SRQ_HANDLE, out.core.srq_handle);
  call_out(call, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &out.core.max_wr, sizeof out.core.max_wr);
  call_out(call, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &out.core.max_sge, sizeof out.core.max_sge);
  call_out(call, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, &out.core.srqn, sizeof out.core.srqn);
  call_out(call, UVERBS_ATTR_UHW_OUT, out.driver, sizeof out.driver);
  return 0;
}
