/*
 * Flow steering rules, counters, receive work queues, their tables and the QPs that spread over those: as objects, with
 * the kernel's checks. No packet ever comes that a rule could match: rules steer nothing, counters tell made-up
 * numbers, and a work queue's receives end when it goes to the error state.
 */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define MAX_FLOW_SPECS 10   /* IB_FLOW_SPEC_SUPPORT_LAYERS of the kernel */
#define MAX_FLOW_PRIORITY 7 /* what mlx5_ib has for rules of verbs */
#define MAX_WQ_SHIFT 10
#define MAX_LOG_TABLE 7
#define RX_HASH_KEY 40 /* bytes of the key in a device's TIR */

struct counters {
  struct object o;
};

int method_counters_create(struct call* call) {
  struct counters* counters = calloc(1, sizeof *counters);
  if (!counters || !object_add(call->ctx, KIND_COUNTERS, &counters->o)) {
    free(counters);
    return ENOMEM;
  }
  call_out_handle(call, UVERBS_ATTR_CREATE_COUNTERS_HANDLE, counters->o.id);
  return 0;
}

int method_counters_destroy(struct call* call) {
  struct counters* counters = call_object(call, UVERBS_ATTR_DESTROY_COUNTERS_HANDLE, KIND_COUNTERS);
  if (!counters) return ENOENT;
  if (counters->o.users) return EBUSY;
  object_remove(&counters->o);
  free(counters);
  return 0;
}

/* Numbers that need all 64 bits, and that say which one was read. As mlx5_ib: of counters that no rule uses, none. */
int method_counters_read(struct call* call) {
  struct counters* counters = call_object(call, UVERBS_ATTR_READ_COUNTERS_HANDLE, KIND_COUNTERS);
  if (!counters) return ENOENT;
  size_t size = call_size(call, UVERBS_ATTR_READ_COUNTERS_BUFF);
  if (!counters->o.users || size % 8 || size / 8 > 16) return EINVAL;
  uint64_t values[16];
  for (size_t i = 0; i < size / 8; i++) values[i] = 0xfedcba9876543210ull + i;
  call_out(call, UVERBS_ATTR_READ_COUNTERS_BUFF, values, size);
  return 0;
}

struct flow {
  struct object o;
  struct qp* qp;
  struct counters* counters[MAX_FLOW_SPECS];
};

/* Bytes of a whole spec, as the kernel has them; 0 for one that it does not know. */
static size_t spec_size(uint32_t type) {
  switch (type & ~(uint32_t)IBV_FLOW_SPEC_INNER) {
    case IBV_FLOW_SPEC_ETH:
      return sizeof(struct ib_uverbs_flow_spec_eth);
    case IBV_FLOW_SPEC_IPV4:
    case IBV_FLOW_SPEC_IPV4_EXT:
      return sizeof(struct ib_uverbs_flow_spec_ipv4);
    case IBV_FLOW_SPEC_IPV6:
      return sizeof(struct ib_uverbs_flow_spec_ipv6);
    case IBV_FLOW_SPEC_ESP:
      return sizeof(struct ib_uverbs_flow_spec_esp);
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      return sizeof(struct ib_uverbs_flow_spec_tcp_udp);
    case IBV_FLOW_SPEC_VXLAN_TUNNEL:
      return sizeof(struct ib_uverbs_flow_spec_tunnel);
    case IBV_FLOW_SPEC_GRE:
      return sizeof(struct ib_uverbs_flow_spec_gre);
    case IBV_FLOW_SPEC_MPLS:
      return sizeof(struct ib_uverbs_flow_spec_mpls);
    case IBV_FLOW_SPEC_ACTION_TAG:
      return sizeof(struct ib_uverbs_flow_spec_action_tag);
    case IBV_FLOW_SPEC_ACTION_DROP:
      return sizeof(struct ib_uverbs_flow_spec_action_drop);
    case IBV_FLOW_SPEC_ACTION_COUNT:
      return sizeof(struct ib_uverbs_flow_spec_action_count);
    default:
      return 0;
  }
}

void flow_destroy(struct object* o) {
  struct flow* flow = container_of(o, struct flow, o);
  flow->qp->o.users--;
  for (int i = 0; i < MAX_FLOW_SPECS; i++)
    if (flow->counters[i]) flow->counters[i]->o.users--;
  object_remove(o);
  free(flow);
}

/* Looks at the specs: 0 or an errno. A log shows each, so that a test can see what libibverbs was told. */
static int read_specs(struct command* cmd, const struct ib_uverbs_create_flow* req, struct flow* flow) {
  size_t at = sizeof *req;
  for (int i = 0; i < req->flow_attr.num_of_specs; i++) {
    struct ib_uverbs_flow_spec_hdr header;
    if (cmd->in_size < at + sizeof header) return EINVAL;
    memcpy(&header, cmd->in + at, sizeof header);
    /* Filters may be cut short: libibverbs sends those of an IPv4 header without its last four fields, unless asked. */
    if (header.size < sizeof header || header.size > spec_size(header.type)) return EINVAL;
    if (cmd->in_size < at + header.size) return EINVAL;
    if (cfg.log) {
      char hex[2 * 128 + 1] = "";
      for (size_t b = sizeof header; b < header.size && b < 128; b++)
        sprintf(hex + 2 * (b - sizeof header), "%02x", cmd->in[at + b]);
      MODEL_LOG("  flow spec 0x%x: %s\n", header.type, hex);
    }
    if (header.type == IBV_FLOW_SPEC_ACTION_COUNT) {
      struct ib_uverbs_flow_spec_action_count count;
      memcpy(&count, cmd->in + at, sizeof count);
      flow->counters[i] = object_find(cmd->ctx, KIND_COUNTERS, count.handle);
      if (!flow->counters[i]) return EINVAL;
    }
    at += header.size;
  }
  return 0;
}

int cmd_ex_create_flow(struct command* cmd) {
  struct ib_uverbs_create_flow req;
  command_request(cmd, &req, sizeof req);
  struct qp* qp = object_find(cmd->ctx, KIND_QP, req.qp_handle);
  if (!qp || (qp->type != IBV_QPT_UD && !qp->table) || req.flow_attr.port != 1) return EINVAL;
  if (req.flow_attr.num_of_specs > MAX_FLOW_SPECS || req.flow_attr.priority > MAX_FLOW_PRIORITY) return EINVAL;
  struct flow* flow = calloc(1, sizeof *flow);
  if (!flow) return ENOMEM;
  int err = read_specs(cmd, &req, flow);
  if (err || !object_add(cmd->ctx, KIND_FLOW, &flow->o)) {
    free(flow);
    return err ? err : ENOMEM;
  }
  flow->qp = qp;
  qp->o.users++;
  for (int i = 0; i < MAX_FLOW_SPECS; i++)
    if (flow->counters[i]) flow->counters[i]->o.users++;
  struct ib_uverbs_create_flow_resp resp = {.flow_handle = flow->o.id};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_ex_destroy_flow(struct command* cmd) {
  struct ib_uverbs_destroy_flow req;
  command_request(cmd, &req, sizeof req);
  struct object* flow = object_find(cmd->ctx, KIND_FLOW, req.flow_handle);
  if (!flow) return ENOENT;
  flow_destroy(flow);
  return 0;
}

/* ------------------------------------------------------------------ receive work queues */

/* Its receive queue is that of a queue pair, which nobody else knows of. */
struct wq {
  struct object o;
  uint64_t user_handle;
  enum ibv_wq_state state;
  struct qp qp;
  uint32_t async_sent;
};

void wq_destroy(struct object* o) {
  struct wq* wq = container_of(o, struct wq, o);
  wq->qp.pd->o.users--;
  wq->qp.recv_cq->o.users--;
  memory_unpin(&wq->qp.pin);
  object_remove(o);
  free(wq);
}

int cmd_ex_create_wq(struct command* cmd) {
  struct ib_uverbs_ex_create_wq req;
  struct mlx5_ib_create_wq buf;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  struct cq* cq = object_find(cmd->ctx, KIND_CQ, req.cq_handle);
  if (!pd || !cq || req.wq_type != IBV_WQT_RQ) return EINVAL;
  if (!buf.rq_wqe_count || (buf.rq_wqe_count & (buf.rq_wqe_count - 1)) || buf.rq_wqe_count > MAX_QP_WR) return EINVAL;
  if (buf.rq_wqe_shift < 4 || buf.rq_wqe_shift > MAX_WQ_SHIFT) return EINVAL;
  struct wq* wq = calloc(1, sizeof *wq);
  if (!wq) return ENOMEM;
  int err = memory_pin(&wq->qp.pin, buf.buf_addr, (uint64_t)buf.rq_wqe_count << buf.rq_wqe_shift, true);
  if (err || !object_add(cmd->ctx, KIND_WQ, &wq->o)) {
    memory_unpin(&wq->qp.pin);
    free(wq);
    return err ? err : ENOMEM;
  }
  wq->user_handle = req.user_handle;
  wq->qp.pd = pd;
  wq->qp.recv_cq = cq;
  wq->qp.uidx = buf.user_index;
  wq->qp.rq = (uint8_t*)buf.buf_addr;
  wq->qp.rq_count = buf.rq_wqe_count;
  wq->qp.rq_shift = buf.rq_wqe_shift;
  wq->qp.dbrec = (_Atomic uint32_t*)buf.db_addr;
  wq->qp.o.id = wq->o.id;
  pd->o.users++;
  cq->o.users++;
  struct ib_uverbs_ex_create_wq_resp resp = {.response_length = sizeof resp,
                                             .wq_handle = wq->o.id,
                                             .max_wr = req.max_wr,
                                             .max_sge = req.max_sge,
                                             .wqn = wq->o.id};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

static void flush(struct wq* wq) {
  while (recv_available(&wq->qp) > 0) {
    struct receive r;
    recv_take(&wq->qp, &r);
    cq_report_error(&wq->qp, true, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0, r.counter);
  }
}

int cmd_ex_modify_wq(struct command* cmd) {
  struct ib_uverbs_ex_modify_wq req;
  command_request(cmd, &req, sizeof req);
  struct wq* wq = object_find(cmd->ctx, KIND_WQ, req.wq_handle);
  if (!wq || !req.attr_mask || (req.attr_mask & ~(uint32_t)(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE))) return EINVAL;
  if ((req.attr_mask & IBV_WQ_ATTR_CURR_STATE) && req.curr_wq_state != (uint32_t)wq->state) return EINVAL;
  if (!(req.attr_mask & IBV_WQ_ATTR_STATE)) return 0;
  if (req.wq_state > IBV_WQS_ERR || (req.wq_state == IBV_WQS_RDY && wq->state == IBV_WQS_ERR)) return EINVAL;
  if (req.wq_state == IBV_WQS_RESET) wq->qp.rq_consumed = 0; /* libmlx5 begins anew at the next step */
  wq->state = req.wq_state;
  if (wq->state == IBV_WQS_ERR) {
    flush(wq);
    async_event(wq->o.ctx, wq->user_handle, IBV_EVENT_WQ_FATAL, &wq->async_sent);
  }
  return 0;
}

int cmd_ex_destroy_wq(struct command* cmd) {
  struct ib_uverbs_ex_destroy_wq req;
  command_request(cmd, &req, sizeof req);
  struct wq* wq = object_find(cmd->ctx, KIND_WQ, req.wq_handle);
  if (!wq) return ENOENT;
  if (wq->o.users) return EBUSY;
  struct ib_uverbs_ex_destroy_wq_resp resp = {.response_length = sizeof resp, .events_reported = wq->async_sent};
  resp.events_reported -= file_forget(cmd->ctx->async_file, sizeof(struct ib_uverbs_async_event_desc), wq->user_handle);
  wq_destroy(&wq->o);
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

struct table {
  struct object o;
  uint32_t count;
  struct wq* wqs[1 << MAX_LOG_TABLE];
};

void table_destroy(struct object* o) {
  struct table* table = container_of(o, struct table, o);
  for (uint32_t i = 0; i < table->count; i++) table->wqs[i]->o.users--;
  object_remove(o);
  free(table);
}

int cmd_ex_create_rwq_ind_table(struct command* cmd) {
  struct ib_uverbs_ex_create_rwq_ind_table req;
  command_request(cmd, &req, sizeof req);
  if (req.log_ind_tbl_size > MAX_LOG_TABLE || cmd->in_size < sizeof req + (sizeof(uint32_t) << req.log_ind_tbl_size))
    return EINVAL;
  struct table* table = calloc(1, sizeof *table);
  if (!table) return ENOMEM;
  table->count = 1u << req.log_ind_tbl_size;
  for (uint32_t i = 0; i < table->count; i++) {
    uint32_t handle;
    memcpy(&handle, cmd->in + sizeof req + i * sizeof handle, sizeof handle);
    table->wqs[i] = object_find(cmd->ctx, KIND_WQ, handle);
    if (!table->wqs[i]) {
      free(table);
      return EINVAL;
    }
  }
  if (!object_add(cmd->ctx, KIND_TABLE, &table->o)) {
    free(table);
    return ENOMEM;
  }
  for (uint32_t i = 0; i < table->count; i++) table->wqs[i]->o.users++;
  struct ib_uverbs_ex_create_rwq_ind_table_resp resp = {
      .response_length = sizeof resp, .ind_tbl_handle = table->o.id, .ind_tbl_num = table->o.id};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_ex_destroy_rwq_ind_table(struct command* cmd) {
  struct ib_uverbs_ex_destroy_rwq_ind_table req;
  command_request(cmd, &req, sizeof req);
  struct object* table = object_find(cmd->ctx, KIND_TABLE, req.ind_tbl_handle);
  if (!table) return ENOENT;
  table_destroy(table);
  return 0;
}

/* ------------------------------------------------------------------ receive side scaling */

int rss_check(struct command* cmd, const struct ib_uverbs_ex_create_qp* req, struct object** table) {
  const uint64_t v4 = MLX5_RX_HASH_SRC_IPV4 | MLX5_RX_HASH_DST_IPV4, v6 = MLX5_RX_HASH_SRC_IPV6 | MLX5_RX_HASH_DST_IPV6;
  const uint64_t tcp = MLX5_RX_HASH_SRC_PORT_TCP | MLX5_RX_HASH_DST_PORT_TCP;
  const uint64_t udp = MLX5_RX_HASH_SRC_PORT_UDP | MLX5_RX_HASH_DST_PORT_UDP;
  struct mlx5_ib_create_qp_rss rss;
  command_driver_request(cmd, sizeof *req, &rss, sizeof rss);
  *table = object_find(cmd->ctx, KIND_TABLE, req->rwq_ind_tbl_handle);
  if (!*table) return EINVAL;
  if (req->qp_type != IBV_QPT_RAW_PACKET) return EOPNOTSUPP;
  if (req->create_flags || req->max_send_wr) return EINVAL;
  if (rss.rx_hash_function != MLX5_RX_HASH_FUNC_TOEPLITZ) return EOPNOTSUPP;
  uint64_t fields = rss.rx_hash_fields_mask;
  if (rss.rx_key_len != RX_HASH_KEY || ((fields & v4) && (fields & v6)) || ((fields & tcp) && (fields & udp)))
    return EINVAL;
  if ((fields & (tcp | udp)) && !(fields & (v4 | v6))) return EINVAL;
  MODEL_LOG("  hash of fields 0x%llx by a key 0x%02x...%02x\n", (unsigned long long)fields, rss.rx_hash_key[0],
            rss.rx_hash_key[RX_HASH_KEY - 1]);
  return 0;
}
