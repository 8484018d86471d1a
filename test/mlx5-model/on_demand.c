/* On-demand paging: regions whose pages are not pinned, but faulted in when they are used, or before that on advice. */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>

#include "model.h"

bool memory_fault_in(const struct mkey* m, uint64_t addr, uint64_t length, uint32_t need) {
  bool write = need & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  return memory_present((uint64_t)m->va + (addr - m->iova), length, write);
}

/* As mlx5_ib does: the ranges must lie in on-demand regions of the domain, and what is not flushed may come later. */
int method_advise_mr(struct call* call) {
  struct pd* pd = call_object(call, UVERBS_ATTR_ADVISE_MR_PD_HANDLE, KIND_PD);
  uint64_t advice = call_u64(call, UVERBS_ATTR_ADVISE_MR_ADVICE);
  uint32_t flags = (uint32_t)call_u64(call, UVERBS_ATTR_ADVISE_MR_FLAGS);
  size_t size;
  const struct ib_uverbs_sge* sge = call_in_array(call, UVERBS_ATTR_ADVISE_MR_SGE_LIST, &size);
  if (!pd || !size || size % sizeof *sge) return EINVAL;
  if (advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || (flags & ~IB_UVERBS_ADVISE_MR_FLAG_FLUSH))
    return EOPNOTSUPP;
  for (size_t i = 0; i < size / sizeof *sge; i++) {
    const struct mkey* m = object_at(KIND_MKEY, sge[i].lkey >> 8);
    uint64_t offset = m ? sge[i].addr - m->iova : 0;
    if (!m || m->key != sge[i].lkey || !m->on_demand) return ENOENT;
    if (m->pd != pd) return EPERM;
    bool write = advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    if (write && !memory_writable(m->access)) return EPERM;
    if (offset > m->length || sge[i].length > m->length - offset) return EFAULT;
    if (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) continue; /* maps what is there: nothing to do here */
    bool present = memory_present((uint64_t)m->va + offset, sge[i].length, write);
    if (!present && (flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH)) return EFAULT;
  }
  return 0;
}
