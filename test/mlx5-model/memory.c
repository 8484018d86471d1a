/* Memory regions, memory windows, and the accounting of pinned pages. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static uint64_t pages_pinned; /* as mm->pinned_vm: of the whole process */

static bool may_pin_without_limit(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
  return !syscall(SYS_capget, &header, data) && (data[0].effective >> CAP_IPC_LOCK & 1);
}

static bool over_limit(uint64_t pages, uint64_t page_size) {
  if (cfg.memlock >= 0) return pages > (uint64_t)cfg.memlock / page_size;
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY) return false;
  return pages > limit.rlim_cur / page_size && !may_pin_without_limit();
}

/* MADV_POPULATE_* came with Linux 5.14; an older kernel refuses it for our own memory too. */
static bool can_populate(uint64_t page_size) {
  static char mine;
  static int known; /* 0: not asked yet */
  if (!known) known = madvise((void*)((uint64_t)&mine & ~(page_size - 1)), page_size, MADV_POPULATE_READ) ? -1 : 1;
  return known > 0;
}

/*
 * Are the pages there, with the right to read or write them? Populating faults them in just as pinning does, so it
 * refuses what pinning refuses. Where that cannot be had, mincore() at least finds the holes.
 */
static bool pages_present(uint64_t start, uint64_t length, uint64_t page_size, bool writable) {
  if (can_populate(page_size))
    return !madvise((void*)start, length, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  enum { CHUNK = 256 };
  unsigned char resident[CHUNK];
  for (uint64_t done = 0; done < length; done += CHUNK * page_size) {
    uint64_t n = min_of(length - done, CHUNK * page_size);
    if (mincore((void*)(start + done), n, resident)) return false;
  }
  return true;
}

bool memory_present(uint64_t addr, uint64_t length, bool writable) {
  uint64_t page = sysconf(_SC_PAGESIZE), start = addr & ~(page - 1);
  return pages_present(start, (addr + length - start + page - 1) & ~(page - 1), page, writable);
}

/*
 * Faults in what a command is going to pin, in pieces and before it has the engine's lock: a GiB takes a quarter of a
 * second, and others wait for the lock. Whether it may be pinned at all is found out then.
 */
void memory_fault_in_before(struct command* cmd, uint32_t number) {
  const uint64_t piece = 4 << 20, page = sysconf(_SC_PAGESIZE);
  uint64_t at = 0, end = 0;
  uint32_t access = 0;
  if (number == IB_USER_VERBS_CMD_REG_MR) {
    struct ib_uverbs_reg_mr req;
    command_request(cmd, &req, sizeof req);
    at = req.start, end = at + req.length, access = req.access_flags;
  } else if (number == IB_USER_VERBS_CMD_REREG_MR) {
    struct ib_uverbs_rereg_mr req;
    command_request(cmd, &req, sizeof req);
    if (req.flags & IBV_REREG_MR_CHANGE_TRANSLATION) at = req.start, end = at + req.length;
    /* What is writable will do for the rights that the region has. */
    access = req.flags & IBV_REREG_MR_CHANGE_ACCESS ? req.access_flags : IBV_ACCESS_LOCAL_WRITE;
  }
  if (access & IBV_ACCESS_ON_DEMAND || end < at || !can_populate(page)) return;
  for (at &= ~(page - 1); at < end; at += piece)
    if (!memory_present(at, min_of(end - at, piece), memory_writable(access))) return;
  cmd->is_faulted_in = true;
}

/* The checks of the kernel's ib_umem_get(), in its order. */
static int pin_pages(struct pin* pin, uint64_t addr, uint64_t length, bool writable, bool is_faulted_in) {
  uint64_t page = sysconf(_SC_PAGESIZE), end = addr + length, aligned_end = (end + page - 1) & ~(page - 1);
  if (end < addr || aligned_end < end) return EINVAL;
  uint64_t start = addr & ~(page - 1), pages = (aligned_end - start) / page;
  if (pages == 0 || pages > UINT32_MAX) return EINVAL; /* so a zero length fails only on a page boundary */
  if (over_limit(pages_pinned + pages, page)) return ENOMEM;
  if (!is_faulted_in && !pages_present(start, pages * page, page, writable)) return EFAULT;
  pages_pinned += pages;
  pin->pages = pages;
  return 0;
}

int memory_pin(struct pin* pin, uint64_t addr, uint64_t length, bool writable) {
  return pin_pages(pin, addr, length, writable, false);
}

void memory_unpin(struct pin* pin) {
  pages_pinned -= pin->pages;
  pin->pages = 0;
}

/* The kernel's ib_check_mr_access() */
int check_access(uint32_t access) {
  const uint32_t supported = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                             IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
    return EINVAL;
  return access & ~supported ? EINVAL : 0;
}

/* The kernel's ib_access_writable() */
bool memory_writable(uint32_t access) {
  return access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
}

static bool same_page_offset(uint64_t start, uint64_t iova) {
  return !((start ^ iova) & (uint64_t)(sysconf(_SC_PAGESIZE) - 1));
}

/* A new region of a domain, without memory yet; it is given back by mkey_destroy(). */
struct mkey* mkey_new(struct pd* pd, uint32_t access) {
  struct mkey* m = calloc(1, sizeof *m);
  if (!m || !object_add(pd->o.ctx, KIND_MKEY, &m->o)) {
    free(m);
    return NULL;
  }
  m->pd = pd;
  pd->o.users++;
  m->access = access;
  mkey_vary(m);
  return m;
}

/* Another key, so that the one of a region that is gone does not work for what comes next. */
void mkey_vary(struct mkey* m) {
  static uint8_t variant;
  m->key = m->o.id << 8 | ++variant;
}

static bool all_memory(uint64_t start, uint64_t length, uint32_t access) {
  return start == 0 && length == UINT64_MAX && (access & IBV_ACCESS_ON_DEMAND);
}

/* Takes memory of the program: pinned, or on demand. What it had before goes only when that has succeeded. */
static int take_memory(const struct command* cmd, struct mkey* m, uint64_t start, uint64_t length, uint64_t iova,
                       uint32_t access) {
  struct pin pin = {0};
  if (!same_page_offset(start, iova)) return EINVAL;
  if (access & IBV_ACCESS_ON_DEMAND) {
    if (start + length < start && !all_memory(start, length, access)) return EINVAL;
  } else {
    int err = pin_pages(&pin, start, length, memory_writable(access), cmd->is_faulted_in);
    if (err) return err;
  }
  memory_unpin(&m->pin);
  m->pin = pin;
  m->on_demand = access & IBV_ACCESS_ON_DEMAND;
  m->va = (uint8_t*)start;
  m->iova = iova;
  m->length = length;
  return 0;
}

int cmd_reg_mr(struct command* cmd) {
  struct ib_uverbs_reg_mr req;
  command_request(cmd, &req, sizeof req);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  MODEL_LOG("  a region of %llu bytes, access 0x%x\n", (unsigned long long)req.length, req.access_flags);
  int err = pd ? check_access(req.access_flags) : EINVAL;
  if (err) return err;
  struct mkey* m = mkey_new(pd, req.access_flags);
  if (!m) return ENOMEM;
  err = take_memory(cmd, m, req.start, req.length, req.hca_va, req.access_flags);
  if (err) {
    mkey_destroy(m);
    return err;
  }
  struct ib_uverbs_reg_mr_resp resp = {.mr_handle = m->o.id, .lkey = m->key, .rkey = m->key};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_rereg_mr(struct command* cmd) {
  struct ib_uverbs_rereg_mr req;
  command_request(cmd, &req, sizeof req);
  struct mkey* m = object_find(cmd->ctx, KIND_MKEY, req.mr_handle);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  if (!m || m->mw_type || m->dm || m->mapping) return EINVAL;
  if (req.flags & ~(uint32_t)IBV_REREG_MR_FLAGS_SUPPORTED) return EINVAL;
  if ((req.flags & IBV_REREG_MR_CHANGE_PD) && !pd) return EINVAL;
  if (m->o.users) return EBUSY; /* windows are bound to it */
  uint32_t access = req.flags & IBV_REREG_MR_CHANGE_ACCESS ? req.access_flags : m->access;
  int err = check_access(access);
  if (err) return err;
  if (req.flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
    err = take_memory(cmd, m, req.start, req.length, req.hca_va, access);
    if (err) return err;
    mkey_vary(m); /* as mlx5_ib does when it has to make the key anew */
  }
  m->access = access;
  if (req.flags & IBV_REREG_MR_CHANGE_PD) {
    m->pd->o.users--;
    m->pd = pd;
    pd->o.users++;
  }
  struct ib_uverbs_rereg_mr_resp resp = {.lkey = m->key, .rkey = m->key};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int method_query_mr(struct call* call) {
  const struct mkey* m = call_object(call, UVERBS_ATTR_QUERY_MR_HANDLE, KIND_MKEY);
  if (!m || m->mw_type) return ENOENT;
  call_out(call, UVERBS_ATTR_QUERY_MR_RESP_LKEY, &m->key, sizeof m->key);
  call_out(call, UVERBS_ATTR_QUERY_MR_RESP_RKEY, &m->key, sizeof m->key);
  call_out(call, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &m->length, sizeof m->length);
  call_out(call, UVERBS_ATTR_QUERY_MR_RESP_IOVA, &m->iova, sizeof m->iova);
  return 0;
}

void mkey_destroy(struct mkey* m) {
  if (m->mw_type) window_unbind(m);
  if (m->dm) m->dm->o.users--;
  if (m->mapping) munmap(m->mapping, m->mapping_size);
  m->pd->o.users--;
  memory_unpin(&m->pin);
  object_remove(&m->o);
  free(m);
}

int cmd_dereg_mr(struct command* cmd) {
  struct ib_uverbs_dereg_mr req;
  command_request(cmd, &req, sizeof req);
  struct mkey* m = object_find(cmd->ctx, KIND_MKEY, req.mr_handle);
  if (!m || m->mw_type) return ENOENT;
  if (m->o.users) return EBUSY;
  mkey_destroy(m);
  return 0;
}

int cmd_alloc_mw(struct command* cmd) {
  struct ib_uverbs_alloc_mw req;
  command_request(cmd, &req, sizeof req);
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req.pd_handle);
  if (!pd || (req.mw_type != IBV_MW_TYPE_1 && req.mw_type != IBV_MW_TYPE_2)) return EINVAL;
  struct mkey* m = calloc(1, sizeof *m);
  if (!m || !object_add(cmd->ctx, KIND_MKEY, &m->o)) {
    free(m);
    return ENOMEM;
  }
  m->pd = pd;
  pd->o.users++;
  m->mw_type = req.mw_type;
  m->key = m->o.id << 8;
  struct ib_uverbs_alloc_mw_resp resp = {.mw_handle = m->o.id, .rkey = m->key};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_dealloc_mw(struct command* cmd) {
  struct ib_uverbs_dealloc_mw req;
  command_request(cmd, &req, sizeof req);
  struct mkey* m = object_find(cmd->ctx, KIND_MKEY, req.mw_handle);
  if (!m || !m->mw_type) return ENOENT;
  mkey_destroy(m);
  return 0;
}

void window_unbind(struct mkey* m) {
  if (m->region) m->region->o.users--;
  m->region = NULL;
  m->access = 0;
  m->length = 0;
  m->va = NULL;
  m->bound_qpn = 0;
}

uint8_t window_umr(struct pd* pd, uint32_t key, const struct mlx5_wqe_mkey_context_seg* seg,
                   const struct mlx5_wqe_umr_klm_seg* klm) {
  struct mkey* m = object_at(KIND_MKEY, key >> 8);
  if (!m || !m->mw_type || m->pd != pd) return MLX5_CQE_SYNDROME_MW_BIND_ERR;
  uint32_t qpn_and_variant = be32toh(seg->qpn_mkey);
  if (seg->free & MLX5_WQE_MKEY_CONTEXT_FREE) {
    window_unbind(m);
    if (m->mw_type == IBV_MW_TYPE_1) m->key = (m->key & ~0xffu) | (qpn_and_variant & 0xff);
    return 0;
  }
  struct mkey* region = object_at(KIND_MKEY, be32toh(klm->mkey) >> 8);
  uint64_t addr = be64toh(klm->address), length = be64toh(seg->len);
  if (!region || region->mw_type || region->pd != pd || !(region->access & IBV_ACCESS_MW_BIND) ||
      (m->mw_type == IBV_MW_TYPE_2 && m->region) || addr < region->iova || length > region->length ||
      addr - region->iova > region->length - length)
    return MLX5_CQE_SYNDROME_MW_BIND_ERR;
  window_unbind(m); /* a type 1 window may be bound anew */
  uint8_t flags = seg->access_flags;
  m->access = IBV_ACCESS_LOCAL_WRITE;
  if (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ) m->access |= IBV_ACCESS_REMOTE_READ;
  if (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE) m->access |= IBV_ACCESS_REMOTE_WRITE;
  if (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC) m->access |= IBV_ACCESS_REMOTE_ATOMIC;
  m->key = (m->key & ~0xffu) | (qpn_and_variant & 0xff);
  m->bound_qpn = m->mw_type == IBV_MW_TYPE_2 ? qpn_and_variant >> 8 : 0;
  m->iova = be64toh(seg->start_addr);
  m->length = length;
  m->va = region->va + (addr - region->iova);
  m->region = region;
  region->o.users++;
  return 0;
}
