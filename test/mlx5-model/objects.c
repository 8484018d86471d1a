/* Handle tables, and the contexts that own the objects in them. */
#include <errno.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

struct object* object_table[KIND_COUNT][MAX_OBJECTS];
struct list every_context = {&every_context, &every_context};

/*
 * Where the search for a free id starts. Ids are reused only after the whole range was used once, so that a stale
 * QPN or key is noticed; the first values keep clear of numbers that mean something else (QP 0 and 1 are special,
 * mkey 1 with variant 0 is the receive queue's end marker).
 */
static uint32_t next_id[KIND_COUNT] = {
    [KIND_PD] = 1,     [KIND_MKEY] = 0x10, [KIND_AH] = 1,   [KIND_CQ] = 0x400, [KIND_SRQ] = 0x40,
    [KIND_QP] = 0x100, [KIND_UAR] = 1,     [KIND_XRCD] = 1, [KIND_DM] = 1};
#define LOWEST_ID 0x10u
static bool is_wire_number(enum kind kind) {
  return kind == KIND_MKEY || kind == KIND_CQ || kind == KIND_SRQ || kind == KIND_QP;
}

bool object_add(struct ctx* c, enum kind kind, struct object* o) {
  for (uint32_t tries = 0; tries < MAX_OBJECTS; tries++) {
    uint32_t id = next_id[kind]++ % MAX_OBJECTS;
    if (id < (is_wire_number(kind) ? LOWEST_ID : 1) || object_table[kind][id]) continue;
    o->ctx = c;
    o->kind = kind;
    o->id = id;
    list_append(&c->objects[kind], &o->of_ctx);
    object_table[kind][id] = o;
    return true;
  }
  return false;
}

void object_remove(struct object* o) {
  object_table[o->kind][o->id] = NULL;
  list_remove(&o->of_ctx);
}

void* object_find(struct ctx* c, enum kind kind, uint32_t id) {
  struct object* o = object_at(kind, id);
  return o && o->ctx == c ? o : NULL;
}

struct ctx* ctx_open(int dev) {
  struct ctx* c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->dev = dev;
  for (int k = 0; k < KIND_COUNT; k++) list_init(&c->objects[k]);
  list_append(&every_context, &c->all);
  return c;
}

static void destroy(struct object* o) {
  switch (o->kind) {
    case KIND_QP:
      return qp_destroy(container_of(o, struct qp, o));
    case KIND_SRQ:
      return srq_destroy(container_of(o, struct srq, o));
    case KIND_CQ:
      return cq_destroy(container_of(o, struct cq, o));
    case KIND_MKEY:
      return mkey_destroy(container_of(o, struct mkey, o));
    case KIND_AH: {
      struct ah* ah = container_of(o, struct ah, o);
      ah->pd->o.users--;
      break;
    }
    case KIND_DM:
      return dm_destroy(container_of(o, struct dm, o));
    case KIND_FLOW:
      return flow_destroy(o);
    case KIND_WQ:
      return wq_destroy(o);
    case KIND_TABLE:
      return table_destroy(o);
    case KIND_COUNTERS:
    case KIND_PD:
    case KIND_XRCD:
    case KIND_UAR:
    case KIND_COUNT:
      break;
  }
  object_remove(o);
  free(o); /* struct object is the first member of each */
}

/* What the kernel does when the last descriptor of the device file goes: everything, in the order of dependence. */
void ctx_release_objects(struct ctx* c) {
  static const enum kind order[] = {KIND_FLOW, KIND_COUNTERS, KIND_QP, KIND_TABLE, KIND_WQ,   KIND_SRQ, KIND_CQ,
                                    KIND_MKEY, KIND_AH,       KIND_PD, KIND_UAR,   KIND_XRCD, KIND_DM};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    struct list* l = &c->objects[order[i]];
    while (!list_empty(l)) destroy(container_of(l->next, struct object, of_ctx));
  }
}

void ctx_close(struct ctx* c) {
  ctx_release_objects(c);
  if (c->async_file) file_put(c->async_file);
  if (c->core_clock) munmap(c->core_clock, sysconf(_SC_PAGESIZE));
  list_remove(&c->all);
  free(c);
}

int cmd_alloc_pd(struct command* cmd) {
  struct pd* pd = calloc(1, sizeof *pd);
  if (!pd || !object_add(cmd->ctx, KIND_PD, &pd->o)) {
    free(pd);
    return ENOMEM;
  }
  struct ib_uverbs_alloc_pd_resp resp = {.pd_handle = pd->o.id};
  struct mlx5_ib_alloc_pd_resp driver = {.pdn = pd->o.id};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int method_pd_query(struct call* call) {
  struct pd* pd = call_object(call, MLX5_IB_ATTR_QUERY_PD_HANDLE, KIND_PD);
  if (!pd) return ENOENT;
  call_out(call, MLX5_IB_ATTR_QUERY_PD_RESP_PDN, &pd->o.id, sizeof pd->o.id);
  return 0;
}

/* The kernel's destroy commands answer ENOENT for a handle that is not there, all others EINVAL. */
int cmd_dealloc_pd(struct command* cmd) {
  struct ib_uverbs_dealloc_pd req;
  command_request(cmd, &req, sizeof req);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  if (!pd) return ENOENT;
  if (pd->o.users) return EBUSY;
  destroy(&pd->o);
  return 0;
}

int cmd_create_ah(struct command* cmd) {
  struct ib_uverbs_create_ah req;
  command_request(cmd, &req, sizeof req);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  if (!pd) return EINVAL;
  int err = check_address(req.attr.port_num, req.attr.is_global, req.attr.grh.sgid_index);
  if (err) return err;
  struct ah* ah = calloc(1, sizeof *ah);
  if (!ah || !object_add(cmd->ctx, KIND_AH, &ah->o)) {
    free(ah);
    return ENOMEM;
  }
  ah->pd = pd;
  pd->o.users++;
  struct ib_uverbs_create_ah_resp resp = {.ah_handle = ah->o.id};
  /* dmac: the kernel resolves the neighbour's Ethernet address here; a locally administered one will do */
  struct mlx5_ib_create_ah_resp driver = {.response_length = sizeof driver, .dmac = {2, 0, 0, 0, 0, 1}};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int cmd_destroy_ah(struct command* cmd) {
  struct ib_uverbs_destroy_ah req;
  command_request(cmd, &req, sizeof req);
  struct ah* ah = object_find(cmd->ctx, KIND_AH, req.ah_handle);
  if (!ah) return ENOENT;
  destroy(&ah->o);
  return 0;
}
