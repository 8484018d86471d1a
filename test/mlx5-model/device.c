/* What the device says of itself: limits, port, GID table. The figures are those of a ConnectX-5. */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "model.h"

uint64_t device_guid(int dev) { return 0x0c42a10300000000ull + (uint64_t)dev; }

/* RoCE has each address twice, for version 1 and 2. */
bool device_gid_is_v2(unsigned index) { return !cfg.ib && index % 2; }

/* On Ethernet: link-local v1, v2, then IPv4 10.99.0.<dev + 1> v1, v2. On InfiniBand only the port's own GID. */
void device_gid(int dev, unsigned index, union ibv_gid* gid) {
  memset(gid, 0, sizeof *gid);
  if (index < (cfg.ib ? 1 : 2)) {
    gid->global.subnet_prefix = htobe64(0xfe80000000000000ull);
    gid->global.interface_id = htobe64(0x0e42a1fffe000000ull + (uint64_t)dev);
  } else if (index < 4 && !cfg.ib) {
    gid->global.interface_id = htobe64(0x0000ffff0a630001ull + (uint64_t)dev);
  }
}

/*
 * 156.25 MHz: 6.4 ns a cycle. The kernel writes the page anew long before a difference of cycles overflows, in two
 * hours and a half; here it is written when it is mapped.
 */
uint64_t device_clock(void) { return now_ns() / 32 * 5; }

static void clock_info(struct mlx5_ib_clock_info* info) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  info->mask = (1ull << 41) - 1;
  info->cycles = device_clock() & info->mask;
  info->nsec = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
  info->shift = 20;
  info->mult = 6710886;
  info->overflow_period = 1ull << 43;
}

static bool port_is_down[MAX_DEVICES];

/* The device fails, or is removed: for the files that are open it is gone. Who opens it anew finds it in order. */
static void device_die(int dev, bool is_removed) {
  for (struct list* l = every_context.next; l != &every_context; l = l->next) {
    struct ctx* c = container_of(l, struct ctx, all);
    uint32_t sent = 0;
    if (c->dev != dev || c->dead) continue;
    c->dead = true;
    for (struct list* q = c->objects[KIND_QP].next; q != &c->objects[KIND_QP]; q = q->next)
      qp_die(container_of(container_of(q, struct object, of_ctx), struct qp, o));
    async_event(c, 0, IBV_EVENT_DEVICE_FATAL, &sent);
    if (!is_removed) continue;
    if (c->async_file) file_hang_up(c->async_file);
    for (struct list* q = c->objects[KIND_CQ].next; q != &c->objects[KIND_CQ]; q = q->next) {
      struct cq* cq = container_of(container_of(q, struct object, of_ctx), struct cq, o);
      if (cq->channel) file_hang_up(cq->channel);
    }
  }
}

static void port_changes(int dev, bool is_down) {
  if (port_is_down[dev] == is_down) return;
  port_is_down[dev] = is_down;
  for (struct list* l = every_context.next; l != &every_context; l = l->next) {
    struct ctx* c = container_of(l, struct ctx, all);
    uint32_t sent = 0;
    if (c->dev == dev && !c->dead) async_event(c, 1, is_down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, &sent);
  }
}

bool device_happen(const char* path) {
  static const char prefix[] = "/dev/mlx5model/";
  char what[16];
  int dev;
  if (strncmp(path, prefix, sizeof prefix - 1)) return false;
  if (sscanf(path + sizeof prefix - 1, "%d/%15s", &dev, what) != 2 || dev < 0 || dev >= cfg.ndev) return false;
  if (!strcmp(what, "fatal") || !strcmp(what, "removed"))
    device_die(dev, what[0] == 'r');
  else if (!strcmp(what, "port-down") || !strcmp(what, "port-up"))
    port_changes(dev, !strcmp(what, "port-down"));
  else
    return false;
  return true;
}

/*
 * What is mapped is said by a byte of the page's number, and by the rest of it which of them. All but the memory of the
 * device is plain memory: doorbell pages that nobody looks at, how the clock is translated, which is written once, and
 * the clock itself, which is written when it is read (hooks.c): so we keep a mapping of it, of which each program has
 * another.
 */
void* device_mmap(struct ctx* c, void* addr, size_t length, uint64_t offset) {
  uint64_t number = offset / sysconf(_SC_PAGESIZE), command = number >> 8 & 0xff;
  if (command == MLX5_IB_MMAP_DEVICE_MEM) return dm_map(c, addr, length, (number & 0xff) | number >> 16 << 8);
  bool is_clock = command == MLX5_IB_MMAP_CORE_CLOCK;
  if (is_clock && c->core_clock) return mremap(c->core_clock, 0, length, MREMAP_MAYMOVE);
  int sharing = is_clock ? MAP_SHARED : MAP_PRIVATE;
  void* page = (void*)syscall(SYS_mmap, addr, length, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0L);
  if (page == MAP_FAILED) return page;
  if (command == MLX5_IB_MMAP_CLOCK_INFO) clock_info(page);
  if (!is_clock) return page;
  c->core_clock = page;
  return mremap(page, 0, length, MREMAP_MAYMOVE);
}

int check_address(uint8_t port, bool is_global, unsigned sgid_index) {
  if (port != 1) return EINVAL;
  if (!is_global) return cfg.ib ? 0 : EINVAL; /* RoCE always has a GRH */
  if (sgid_index >= GID_TABLE_LEN) return EINVAL;
  union ibv_gid gid;
  device_gid(0, sgid_index, &gid);
  return gid.global.interface_id ? 0 : ENODATA; /* an empty entry of the table */
}

static struct mlx5_ib_alloc_ucontext_resp context_response(const struct ctx* c) {
  return (struct mlx5_ib_alloc_ucontext_resp){
      .qp_tab_size = MAX_OBJECTS,
      .bf_reg_size = 512,
      .tot_bfregs = c->bfregs,
      .cache_line_size = 64,
      .max_sq_desc_sz = 1024,
      .max_rq_desc_sz = 512,
      .max_send_wqebb = MAX_QP_WR,
      .max_recv_wr = MAX_QP_WR,
      .max_srq_recv_wr = MAX_SRQ_WR,
      .num_ports = 1,
      .response_length = sizeof(struct mlx5_ib_alloc_ucontext_resp),
      /* The clock is at the start of its page. */
      .comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE | MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET |
                   MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY,
      .cqe_version = 1, /* CQEs name the QP by uidx */
      .cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
      .eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
      .log_uar_size = 12,
      .num_uars_per_page = 1,
      .clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1,
      .dump_fill_mkey = NULL_MKEY,
  };
}

/* What both forms of GET_CONTEXT do. */
static int context_start(struct ctx* c, const struct mlx5_ib_alloc_ucontext_req_v2* req) {
  if (c->ready || req->total_num_bfregs < 4) return EINVAL;
  int err = engine_start_thread();
  if (err) return err;
  c->ready = true;
  if (cfg.ioctl && (req->lib_caps & MLX5_LIB_CAP_DYN_UAR)) return 0; /* it allocates its doorbell pages itself: uar.c */
  c->bfregs = req->total_num_bfregs & ~1u;
  c->low_latency_bfregs = min_of(req->num_low_latency_bfregs, 31u);
  if (c->low_latency_bfregs > c->bfregs - 2) c->low_latency_bfregs = c->bfregs - 2;
  return 0;
}

static struct file* async_file_new(struct ctx* c) {
  struct file* f = file_new_events();
  if (!f || c->async_file) return f;
  c->async_file = f;
  file_hold(f);
  return f;
}

int cmd_get_context(struct command* cmd) {
  struct ctx* c = cmd->ctx;
  struct mlx5_ib_alloc_ucontext_req_v2 req;
  command_driver_request(cmd, sizeof(struct ib_uverbs_get_context), &req, sizeof req);
  if (c->ready) return EINVAL;
  struct file* async = async_file_new(c);
  if (!async) return EMFILE;
  int err = context_start(c, &req);
  if (err) return err;
  struct ib_uverbs_get_context_resp resp = {.async_fd = async->read_fd, .num_comp_vectors = COMP_VECTORS};
  struct mlx5_ib_alloc_ucontext_resp driver = context_response(c);
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int method_get_context(struct call* call) {
  struct mlx5_ib_alloc_ucontext_req_v2 req;
  call_in(call, UVERBS_ATTR_UHW_IN, &req, sizeof req);
  int err = context_start(call->ctx, &req);
  if (err) return err;
  struct mlx5_ib_alloc_ucontext_resp driver = context_response(call->ctx);
  uint32_t vectors = COMP_VECTORS;
  uint64_t support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
  call_out(call, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors, sizeof vectors);
  call_out(call, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support, sizeof support);
  call_out(call, UVERBS_ATTR_UHW_OUT, &driver, sizeof driver);
  return 0;
}

/* For who imports the device file: the context is there already. */
int method_query_context(struct call* call) {
  struct mlx5_ib_alloc_ucontext_resp driver = context_response(call->ctx);
  uint32_t vectors = COMP_VECTORS;
  uint64_t support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
  call_out(call, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &vectors, sizeof vectors);
  call_out(call, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &support, sizeof support);
  call_out(call, MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, &driver, sizeof driver);
  return 0;
}

int method_async_event_alloc(struct call* call) {
  struct file* f = async_file_new(call->ctx);
  if (!f) return EMFILE;
  call_out_handle(call, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, (uint32_t)f->read_fd);
  return 0;
}

static void device_attributes(int dev, struct ib_uverbs_query_device_resp* r) {
  *r = (struct ib_uverbs_query_device_resp){
      .fw_ver = 16ull << 32 | 35ull << 16 | 4030,
      .node_guid = htobe64(device_guid(dev)),
      .sys_image_guid = htobe64(device_guid(dev)),
      .max_mr_size = UINT64_MAX,
      .page_size_cap = 0xfffffffffffff000ull,
      .vendor_id = 0x02c9,
      .vendor_part_id = DEVICE_ID,
      .max_qp = MAX_OBJECTS / 2,
      .max_qp_wr = MAX_QP_WR,
      .device_cap_flags = 0xed721c36,
      .max_sge = 30,
      .max_sge_rd = 30,
      .max_cq = MAX_OBJECTS / 2,
      .max_cqe = MAX_CQE,
      .max_mr = MAX_OBJECTS / 2,
      .max_pd = MAX_OBJECTS / 2,
      .max_qp_rd_atom = MAX_RD_ATOMIC,
      .max_res_rd_atom = 2097152,
      .max_qp_init_rd_atom = MAX_RD_ATOMIC,
      .atomic_cap = IBV_ATOMIC_HCA,
      .max_mw = MAX_OBJECTS / 2,
      .max_mcast_grp = 2097152,
      .max_mcast_qp_attach = 240,
      .max_total_mcast_qp_attach = 503316480,
      .max_ah = MAX_OBJECTS / 2,
      .max_srq = MAX_OBJECTS / 2,
      .max_srq_wr = MAX_SRQ_WR,
      .max_srq_sge = MAX_SRQ_SGE,
      .max_pkeys = 128,
      .local_ca_ack_delay = 16,
      .phys_port_cnt = 1,
  };
}

int cmd_query_device(struct command* cmd) {
  struct ib_uverbs_query_device_resp resp;
  device_attributes(cmd->ctx->dev, &resp);
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

/* What on-demand memory is good for, with each transport. */
#define ODP \
  (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC)

int cmd_ex_query_device(struct command* cmd) {
  struct ib_uverbs_ex_query_device_resp resp = {
      .response_length = min_of(sizeof resp, cmd->driver_out_offset),
      .odp_caps = {.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT, .per_transport_caps = {ODP, ODP, ODP}},
      .max_dm_size = DM_SIZE,
      .timestamp_mask = UINT64_MAX,
      .hca_core_clock = 156250,
      .cq_moderation_caps = {.max_cq_moderation_count = 65535, .max_cq_moderation_period = MAX_CQ_PERIOD},
  };
  device_attributes(cmd->ctx->dev, &resp.base);
  resp.device_cap_flags_ex = resp.base.device_cap_flags;
  struct mlx5_ib_query_device_resp driver = {
      .response_length = sizeof driver,
      /* compression may be asked for, and is never done: a NIC need not either */
      .cqe_comp_caps = {.max_num = 64,
                        .supported_format = MLX5DV_CQE_RES_FORMAT_HASH | MLX5DV_CQE_RES_FORMAT_CSUM |
                                            MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX},
      .packet_pacing_caps = {.qp_rate_limit_min = 1,
                             .qp_rate_limit_max = 100000000,
                             .supported_qpts = 1 << IBV_QPT_RAW_PACKET,
                             .cap_flags = MLX5_IB_PP_SUPPORT_BURST},
      .flags = MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP | MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD,
      .dci_streams_caps = {.max_log_num_concurent = DC_LOG_CONCURRENT, .max_log_num_errored = DC_LOG_ERRORED},
  };
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int cmd_query_port(struct command* cmd) {
  struct ib_uverbs_query_port req;
  command_request(cmd, &req, sizeof req);
  if (req.port_num != 1) return EINVAL;
  struct ib_uverbs_query_port_resp resp = {
      .port_cap_flags = cfg.ib ? 0x2651e848 : 0x04010000,
      .max_msg_sz = MAX_MSG_SIZE,
      .gid_tbl_len = GID_TABLE_LEN,
      .pkey_tbl_len = cfg.ib ? 128 : 1,
      .lid = cfg.ib ? 1 + cmd->ctx->dev : 0,
      .sm_lid = cfg.ib,
      .state = port_is_down[cmd->ctx->dev] ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
      .max_mtu = IBV_MTU_4096,
      .active_mtu = cfg.ib ? IBV_MTU_4096 : IBV_MTU_1024, /* what fits an Ethernet MTU of 1500 */
      .max_vl_num = 1,
      .active_width = 2,                                 /* 4X */
      .active_speed = 32,                                /* EDR: 100 Gb/s */
      .phys_state = port_is_down[cmd->ctx->dev] ? 3 : 5, /* Disabled, LinkUp */
      .link_layer = cfg.ib ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
      .flags = cfg.ib ? 0 : IBV_QPF_GRH_REQUIRED,
  };
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}
