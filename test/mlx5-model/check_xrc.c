/* Checks: extended reliable connections. A sender on one device, a receiving QP with shared receive queues on the
 * other. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "check.h"

enum { SRQS = 2 };

struct xrc {
  struct end a, b; /* a.qp sends, b.qp receives */
  struct ibv_xrcd* xrcd;
  struct ibv_cq* cqs[SRQS];
  struct ibv_srq* srqs[SRQS];
  uint32_t numbers[SRQS];
};

static struct ibv_xrcd* open_private(struct ibv_context* context) {
  struct ibv_xrcd_init_attr attr = {
      .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
  return ibv_open_xrcd(context, &attr);
}

static bool connect_one(struct end* e, uint32_t dest, bool sends) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  EXPECT(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = dest,
                              .max_dest_rd_atomic = 4,
                              .min_rnr_timer = 1,
                              .ah_attr = {.is_global = 1, .grh = {.sgid_index = 3, .hop_limit = 64}, .port_num = 1}};
  EXPECT(!ibv_query_gid(e->context, 1, 3, &attr.ah_attr.grh.dgid));
  EXPECT(!ibv_modify_qp(e->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            (sends ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)));
  attr =
      (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 4};
  return !sends || !ibv_modify_qp(e->qp, &attr,
                                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
}

static bool xrc_open(struct xrc* x) {
  EXPECT(end_open(&x->a, 0) && end_open(&x->b, 1) && (x->xrcd = open_private(x->b.context)));
  for (int i = 0; i < SRQS; i++) {
    EXPECT(x->cqs[i] = ibv_create_cq(x->b.context, 64, NULL, NULL, 0));
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = 16, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
        .xrcd = x->xrcd,
        .cq = x->cqs[i],
        .pd = x->b.pd};
    EXPECT((x->srqs[i] = ibv_create_srq_ex(x->b.context, &attr)) && !ibv_get_srq_num(x->srqs[i], &x->numbers[i]));
  }
  struct ibv_qp_init_attr_ex receives = {
      .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = x->xrcd};
  struct ibv_qp_init_attr_ex sends = {.qp_type = IBV_QPT_XRC_SEND,
                                      .comp_mask = IBV_QP_INIT_ATTR_PD,
                                      .pd = x->a.pd,
                                      .send_cq = x->a.cq,
                                      .cap = {.max_send_wr = 16, .max_send_sge = 1}};
  EXPECT((x->b.qp = ibv_create_qp_ex(x->b.context, &receives)) && (x->a.qp = ibv_create_qp_ex(x->a.context, &sends)));
  EXPECT(connect_one(&x->b, x->a.qp->qp_num, false) && connect_one(&x->a, x->b.qp->qp_num, true));
  return true;
}

static bool xrc_close(struct xrc* x) {
  EXPECT(ibv_close_xrcd(x->xrcd) == EBUSY);
  for (int i = 0; i < SRQS; i++) EXPECT(!ibv_destroy_srq(x->srqs[i]) && !ibv_destroy_cq(x->cqs[i]));
  EXPECT(ibv_close_xrcd(x->xrcd) == EBUSY);
  EXPECT(!ibv_destroy_qp(x->b.qp) && !ibv_close_xrcd(x->xrcd));
  x->b.qp = NULL;
  return end_close(&x->a) && end_close(&x->b);
}

static int post(struct xrc* x, enum ibv_wr_opcode op, uint32_t srqn, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)x->a.buf, 100, x->a.mr->lkey};
  struct ibv_send_wr *bad, wr = {.wr_id = id,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = op,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = htonl(0x1234),
                                 .qp_type.xrc.remote_srqn = srqn};
  wr.wr.rdma.remote_addr = (uintptr_t)x->b.buf + 8192;
  wr.wr.rdma.rkey = x->b.mr->rkey;
  return ibv_post_send(x->a.qp, &wr, &bad);
}

static int post_srq(struct xrc* x, int i, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)x->b.buf + 1000u * (unsigned)i, 1000, x->b.mr->lkey};
  struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
  return ibv_post_srq_recv(x->srqs[i], &wr, &bad);
}

static bool messages_by_number(void) {
  struct xrc x;
  EXPECT(xrc_open(&x) && x.numbers[0] != x.numbers[1]);
  memset(x.a.buf, 0x5a, 100);
  for (int i = SRQS - 1; i >= 0; i--) {
    EXPECT(!post_srq(&x, i, 40u + (unsigned)i) && !post(&x, IBV_WR_SEND_WITH_IMM, x.numbers[i], 1));
    EXPECT(completes(x.a.cq, 1, IBV_WC_SUCCESS));
    struct ibv_wc wc = next_completion(x.cqs[i]);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 40u + (unsigned)i && wc.byte_len == 100);
    EXPECT(wc.imm_data == htonl(0x1234) && wc.qp_num == x.b.qp->qp_num);
    EXPECT(!memcmp(x.b.buf + 1000 * i, x.a.buf, 100) && quiet(x.cqs[1 - i]));
  }
  EXPECT(!post(&x, IBV_WR_RDMA_WRITE, x.numbers[0], 2) && completes(x.a.cq, 2, IBV_WC_SUCCESS));
  EXPECT(!memcmp(x.b.buf + 8192, x.a.buf, 100) && quiet(x.cqs[0]));
  return xrc_close(&x);
}

static bool number_of_nobody(void) {
  struct xrc x;
  EXPECT(xrc_open(&x));
  EXPECT(!post(&x, IBV_WR_SEND, x.numbers[0] + 1000, 3));
  struct ibv_wc wc = next_completion(x.a.cq);
  EXPECT(wc.wr_id == 3 && wc.status != IBV_WC_SUCCESS && (int)wc.status >= 0 && qp_state(x.a.qp) == IBV_QPS_ERR);
  EXPECT(quiet(x.cqs[0]) && quiet(x.cqs[1]));
  return xrc_close(&x);
}

static bool empty_queue(void) {
  struct xrc x;
  EXPECT(xrc_open(&x) && !post(&x, IBV_WR_SEND, x.numbers[1], 4));
  EXPECT(completes(x.a.cq, 4, IBV_WC_RNR_RETRY_EXC_ERR));
  return xrc_close(&x);
}

const struct check xrc_checks[] = {
    {"XRC: messages into the queue that they name", messages_by_number},
    {"XRC: a queue that is not there", number_of_nobody},
    {"XRC: a queue without receives", empty_queue},
    {0},
};
