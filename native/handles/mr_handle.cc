#include "handles/mr_handle.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

namespace rdma {

namespace {

// Hugepagesize of /proc/meminfo in bytes; a length that is no multiple of it makes munmap() fail.
size_t HugePageSize() {
  size_t kib = 0;
  if (FILE* file = fopen("/proc/meminfo", "re")) {
    char line[128];
    while (kib == 0 && fgets(line, sizeof line, file) != nullptr) {
      if (sscanf(line, "Hugepagesize: %zu kB", &kib) != 1) kib = 0;  // NOLINT(cert-err34-c): the kernel wrote it
    }
    (void)fclose(file);
  }
  return (kib != 0 ? kib : 2048) * 1024;
}

}  // namespace

Outcome<std::shared_ptr<PageMemory>> PageMemory::Map(size_t length, bool huge_pages) {
  const size_t page = huge_pages ? HugePageSize() : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (length > SIZE_MAX - page) return VerbError{"mmap", ENOMEM};
  const size_t mapped = (length + page - 1) / page * page;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | (huge_pages ? MAP_HUGETLB : 0), -1, 0);
  if (data == MAP_FAILED) return VerbError{"mmap", errno};
  return std::shared_ptr<PageMemory>(new PageMemory(data, mapped));
}

PageMemory::~PageMemory() { munmap(data_, mapped_); }

Outcome<std::shared_ptr<MrHandle>> MrHandle::Register(std::shared_ptr<PdHandle> pd, void* addr, size_t length,
                                                      unsigned int access, std::shared_ptr<void> memory) {
  if (pd->get() == nullptr) return VerbError{"ibv_reg_mr", EBADF};
  errno = 0;
  auto mr = FromPtr("ibv_reg_mr", ibv_reg_mr(pd->get(), addr, length, access));
  if (mr.error) return mr.error;
  return std::shared_ptr<MrHandle>(new MrHandle(std::move(pd), mr.value, std::move(memory)));
}

VerbError MrHandle::Destroy() {
  if (mr_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_dereg_mr", ibv_dereg_mr(mr_)));
  if (error) return error;
  mr_ = nullptr;
  memory_.reset();
  pd_.Reset();
  return {};
}

}  // namespace rdma
