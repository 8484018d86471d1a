/*
 * Regions of a DMA-BUF. What stands for one here is any file that can be mapped, a memfd for example: the kernel of the
 * machine may have nothing that exports one. As in the kernel the region keeps the memory, so the descriptor may go.
 */
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

int method_reg_dmabuf_mr(struct call* call) {
  struct pd* pd = call_object(call, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, KIND_PD);
  uint64_t offset = call_u64(call, UVERBS_ATTR_REG_DMABUF_MR_OFFSET), page_size = sysconf(_SC_PAGESIZE);
  uint64_t length = call_u64(call, UVERBS_ATTR_REG_DMABUF_MR_LENGTH);
  uint64_t iova = call_u64(call, UVERBS_ATTR_REG_DMABUF_MR_IOVA);
  int fd = (int)call_u64(call, UVERBS_ATTR_REG_DMABUF_MR_FD);
  uint32_t access = (uint32_t)call_u64(call, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS);
  uint64_t within_page = offset & (page_size - 1);
  struct stat st;
  if (!pd || within_page != (iova & (page_size - 1))) return EINVAL;
  int err = check_access(access);
  if (err) return err;
  if (access & IBV_ACCESS_ON_DEMAND) return EOPNOTSUPP;
  if (fstat(fd, &st)) return EBADF;
  MODEL_LOG("  a region of file %llu: offset 0x%llx, %llu bytes, iova 0x%llx, access 0x%x\n",
            (unsigned long long)st.st_ino, (unsigned long long)offset, (unsigned long long)length,
            (unsigned long long)iova, access);
  if (offset + length < offset || !length || offset + length > (uint64_t)st.st_size) return EINVAL;
  int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
  int protection = mode == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ;
  void* p = (void*)syscall(SYS_mmap, NULL, length + within_page, protection, MAP_SHARED, fd, offset - within_page);
  if (p == MAP_FAILED) return errno == ENODEV || errno == EACCES ? EINVAL : errno; /* "not a dma-buf" */
  struct mkey* m = mkey_new(pd, access);
  if (!m) {
    munmap(p, length + within_page);
    return ENOMEM;
  }
  m->mapping = p;
  m->mapping_size = length + within_page;
  m->va = (uint8_t*)p + within_page;
  m->iova = iova;
  m->length = length;
  call_out(call, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &m->key, sizeof m->key);
  call_out(call, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &m->key, sizeof m->key);
  call_out_handle(call, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, m->o.id);
  return 0;
}
