/*
 * The kernel's younger command interface: ioctl(RDMA_VERBS_IOCTL) on the device file.
 *
 * Layout (<rdma/rdma_user_ioctl_cmds.h>): a call names a method of a kind of object, and brings attributes. One of up
 * to 8 bytes lies in the attribute itself, a longer one and all results behind a pointer; a handle is in place. What is
 * not in the table below is answered with EPROTONOSUPPORT, as a kernel does that does not know it: libibverbs then
 * takes the write() form of the command where there is one (uverbs.c).
 */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <string.h>

#include "model.h"

static const struct method {
  uint16_t object, method;
  const char* name;
  method_fn* fn;
  uint16_t attributes, driver_attributes; /* how many it knows: ids from 0, and from UVERBS_UDATA_DRIVER_DATA_FLAG */
} methods[] = {
#define METHOD(OBJECT, METHOD, fn, attributes, driver) \
  { OBJECT, METHOD, #METHOD, fn, attributes, driver }
    METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, method_get_context, 2, 2),
    METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, method_query_context, 2, 1),
    METHOD(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, method_async_event_alloc, 1, 0),
    METHOD(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, method_uar_alloc, 0, 5),
    METHOD(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, method_uar_destroy, 0, 1),
    METHOD(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE, method_counters_create, 1, 0),
    METHOD(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY, method_counters_destroy, 1, 0),
    METHOD(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ, method_counters_read, 3, 0),
    METHOD(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, method_cq_create, 8, 2),
    METHOD(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, method_qp_create, 15, 2),
    METHOD(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, method_srq_create, 14, 2),
    METHOD(UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY, method_pd_query, 0, 2),
    METHOD(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER, method_devx_other, 0, 2),
    METHOD(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_QUERY, method_devx_obj_query, 0, 3),
    METHOD(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY, method_devx_obj_modify, 0, 3),
    METHOD(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, method_query_mr, 5, 0),
    METHOD(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, method_advise_mr, 4, 0),
    METHOD(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, method_reg_dmabuf_mr, 9, 0),
    METHOD(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, method_dm_reg_mr, 8, 0),
    METHOD(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, method_dm_alloc, 3, 3),
    METHOD(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, method_dm_free, 1, 0),
    METHOD(UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY, method_dm_query, 0, 4),
#undef METHOD
};

static struct ib_uverbs_attr* attribute(const struct call* call, uint16_t id) {
  for (unsigned i = 0; i < call->count; i++)
    if (call->attributes[i].attr_id == id) return &call->attributes[i];
  return NULL;
}

bool call_has(const struct call* call, uint16_t id) { return attribute(call, id) != NULL; }

/* Whether inline or behind a pointer; what an older library does not send reads as zero. */
void call_in(const struct call* call, uint16_t id, void* to, size_t size) {
  const struct ib_uverbs_attr* a = attribute(call, id);
  memset(to, 0, size);
  if (a) memcpy(to, a->len <= sizeof a->data ? (const void*)&a->data : (const void*)a->data, min_of(size, a->len));
}

uint64_t call_u64(const struct call* call, uint16_t id) {
  uint64_t value;
  call_in(call, id, &value, sizeof value);
  return value;
}

const void* call_in_array(const struct call* call, uint16_t id, size_t* size) {
  const struct ib_uverbs_attr* a = attribute(call, id);
  *size = a ? a->len : 0;
  return !a ? NULL : a->len <= sizeof a->data ? (const void*)&a->data : (const void*)a->data;
}

size_t call_size(const struct call* call, uint16_t id) {
  const struct ib_uverbs_attr* a = attribute(call, id);
  return a ? a->len : 0;
}

uint32_t call_handle(const struct call* call, uint16_t id) {
  const struct ib_uverbs_attr* a = attribute(call, id);
  return a ? (uint32_t)a->data : 0;
}

void* call_object(const struct call* call, uint16_t id, enum kind kind) {
  return call_has(call, id) ? object_find(call->ctx, kind, call_handle(call, id)) : NULL;
}

void call_out(const struct call* call, uint16_t id, const void* from, size_t size) {
  struct ib_uverbs_attr* a = attribute(call, id);
  if (!a) return;
  memcpy((void*)a->data, from, min_of(size, a->len));
  a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

void call_out_handle(const struct call* call, uint16_t id, uint32_t handle) {
  struct ib_uverbs_attr* a = attribute(call, id);
  if (a) a->data = handle;
}

/* One that the method does not know, and that must not be ignored. */
static bool has_unknown(const struct call* call, const struct method* m) {
  for (unsigned i = 0; i < call->count; i++) {
    const struct ib_uverbs_attr* a = &call->attributes[i];
    bool driver = a->attr_id & UVERBS_UDATA_DRIVER_DATA_FLAG;
    uint16_t id = a->attr_id & ~UVERBS_ID_NS_MASK;
    if (id >= (driver ? m->driver_attributes : m->attributes) && (a->flags & UVERBS_ATTR_F_MANDATORY)) return true;
  }
  return false;
}

static int run(struct call* call, const struct method* m) {
  if (!m || has_unknown(call, m)) return EPROTONOSUPPORT;
  /* A forked child may still give back what it inherited the mapping of; the object itself is gone there. */
  if (call->ctx->orphan || call->ctx->dead) return m->fn == method_uar_destroy ? 0 : EIO;
  if (!call->ctx->ready && m->fn != method_get_context) return EINVAL;
  return m->fn(call);
}

int uverbs_ioctl(struct ctx* c, void* arg) {
  struct ib_uverbs_ioctl_hdr* header = arg;
  struct call call = {.ctx = c, .attributes = header->attrs, .count = header->num_attrs};
  const struct method* m = NULL;
  if (header->length != sizeof *header + header->num_attrs * sizeof *header->attrs) return errno = EINVAL, -1;
  for (size_t i = 0; i < sizeof methods / sizeof *methods && !m; i++)
    if (methods[i].object == header->object_id && methods[i].method == header->method_id) m = &methods[i];
  engine_lock();
  int err = run(&call, m);
  if (!err) engine_kick();
  engine_unlock();
  MODEL_LOG("%s (object 0x%x, method 0x%x): %s\n", m ? m->name : "unknown", header->object_id, header->method_id,
            err ? strerror(err) : "ok");
  return err ? (errno = err, -1) : 0;
}
