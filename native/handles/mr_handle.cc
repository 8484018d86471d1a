#include "handles/mr_handle.h"

namespace rdma {

Outcome<std::shared_ptr<MrHandle>> MrHandle::Register(std::shared_ptr<PdHandle> pd, void* addr, size_t length,
                                                      const uint64_t* iova, unsigned int access,
                                                      std::shared_ptr<void> memory) {
  const char* verb = iova == nullptr ? "ibv_reg_mr" : "ibv_reg_mr_iova";
  const uint64_t first = iova == nullptr ? reinterpret_cast<uintptr_t>(addr) : *iova;
  if (pd->get() == nullptr) return VerbError{verb, EBADF};
  errno = 0;
  auto mr = FromPtr(verb, ibv_reg_mr_iova(pd->get(), addr, length, first, access));
  if (mr.error) return mr.error;
  return std::shared_ptr<MrHandle>(new MrHandle(std::move(pd), mr.value, first, std::move(memory)));
}

Outcome<std::shared_ptr<MrHandle>> MrHandle::AllocNull(std::shared_ptr<PdHandle> pd) {
  errno = 0;
  auto mr = FromPtr("ibv_alloc_null_mr", ibv_alloc_null_mr(pd->get()));
  if (mr.error) return mr.error;
  return std::shared_ptr<MrHandle>(new MrHandle(std::move(pd), mr.value, 0, nullptr));
}

Outcome<std::shared_ptr<MrHandle>> MrHandle::RegisterDm(std::shared_ptr<PdHandle> pd, std::shared_ptr<DmHandle> dm,
                                                        uint64_t offset, size_t length, unsigned int access) {
  errno = 0;
  auto mr = FromPtr("ibv_reg_dm_mr", ibv_reg_dm_mr(pd->get(), dm->get(), offset, length, access));
  if (mr.error) return mr.error;
  std::shared_ptr<MrHandle> handle(new MrHandle(std::move(pd), mr.value, 0, nullptr));
  handle->dm_.Replace(std::move(dm));
  return handle;
}

Outcome<std::shared_ptr<MrHandle>> MrHandle::RegisterDmabuf(std::shared_ptr<PdHandle> pd, int fd, uint64_t offset,
                                                            size_t length, uint64_t iova, unsigned int access,
                                                            std::shared_ptr<void> memory) {
  if (pd->get() == nullptr) return VerbError{"ibv_reg_dmabuf_mr", EBADF};
  errno = 0;
  auto mr =
      FromPtr("ibv_reg_dmabuf_mr", ibv_reg_dmabuf_mr(pd->get(), offset, length, iova, fd, static_cast<int>(access)));
  if (mr.error) return mr.error;
  return std::shared_ptr<MrHandle>(new MrHandle(std::move(pd), mr.value, iova, std::move(memory)));
}

Outcome<std::shared_ptr<MrHandle>> MrHandle::Import(std::shared_ptr<PdHandle> pd, uint32_t handle, uint64_t iova) {
  errno = 0;
  auto mr = FromPtr("ibv_import_mr", ibv_import_mr(pd->get(), handle));
  if (mr.error) return mr.error;
  std::shared_ptr<MrHandle> imported(new MrHandle(std::move(pd), mr.value, iova, nullptr));
  imported->imported_ = true;
  return imported;
}

MrHandle::Reregistered MrHandle::Rereg(int flags, const std::shared_ptr<PdHandle>& pd, void* addr, size_t length,
                                       unsigned int access, std::shared_ptr<void> memory) {
  errno = 0;
  const int code = ibv_rereg_mr(mr_, flags, pd ? pd->get() : nullptr, addr, length, static_cast<int>(access));
  const int err = errno != 0 ? errno : EIO;
  // IBV_REREG_MR_ERR_DO_FORK_OLD: the region is as asked for, only the old memory stays away from children.
  if (code == 0 || code == IBV_REREG_MR_ERR_DO_FORK_OLD) {
    if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) pd_.Replace(pd);
    if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
      memory_ = std::move(memory);
      iova_ = reinterpret_cast<uintptr_t>(addr);
    }
    return {};
  }
  // Where the provider has no such verb nothing was touched, though libibverbs answers as for a failed command.
  if (code == IBV_REREG_MR_ERR_INPUT || code == IBV_REREG_MR_ERR_DONT_FORK_NEW || err == EOPNOTSUPP) return {err, true};
  memory_ = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(memory_, std::move(memory));
  return {err, false};
}

VerbError MrHandle::Destroy() {
  if (mr_ == nullptr) return {};
  if (imported_) {
    ibv_unimport_mr(mr_);
  } else {
    VerbError error = FromDestroy(FromRet("ibv_dereg_mr", ibv_dereg_mr(mr_)));
    if (error) return error;
  }
  mr_ = nullptr;
  memory_.reset();
  dm_.Reset();
  pd_.Reset();
  return {};
}

}  // namespace rdma
