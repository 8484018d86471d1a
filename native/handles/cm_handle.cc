#include "handles/cm_handle.h"

#include <fcntl.h>

namespace rdma {

namespace {

void* AsContext(uint32_t number) {
  return reinterpret_cast<void*>(uintptr_t{number});  // NOLINT(performance-no-int-to-ptr): nothing to librdmacm
}

}  // namespace

Outcome<std::shared_ptr<CmChannelHandle>> CmChannelHandle::Create() {
  errno = 0;
  auto channel = FromPtr("rdma_create_event_channel", rdma_create_event_channel());
  if (channel.error) return channel.error;
  std::shared_ptr<CmChannelHandle> handle(new CmChannelHandle(channel.value));
  const int flags = fcntl(channel.value->fd, F_GETFL);
  if (flags < 0 || fcntl(channel.value->fd, F_SETFL, flags | O_NONBLOCK) < 0) return VerbError{"fcntl", errno};
  return handle;
}

VerbError CmChannelHandle::Destroy() {
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
  channel_ = nullptr;
  return {};
}

Outcome<std::shared_ptr<CmIdHandle>> CmIdHandle::Create(std::shared_ptr<CmChannelHandle> channel, rdma_port_space ps,
                                                        uint32_t number) {
  rdma_cm_id* id = nullptr;
  errno = 0;
  VerbError error = FromErrno("rdma_create_id", rdma_create_id(channel->get(), &id, AsContext(number), ps));
  if (error) return error;
  return Adopt(std::move(channel), id, number);
}

std::shared_ptr<CmIdHandle> CmIdHandle::Adopt(std::shared_ptr<CmChannelHandle> channel, rdma_cm_id* id,
                                              uint32_t number) {
  id->context = AsContext(number);
  return std::shared_ptr<CmIdHandle>(new CmIdHandle(std::move(channel), id));
}

uint32_t CmIdHandle::number() const { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(id_->context)); }

VerbError CmIdHandle::Migrate(std::shared_ptr<CmChannelHandle> channel) {
  errno = 0;
  VerbError error = FromErrno("rdma_migrate_id", rdma_migrate_id(id_, channel->get()));
  if (!error) channel_.emplace(std::move(channel));
  return error;
}

VerbError CmIdHandle::Destroy() {
  if (id_ == nullptr) return {};
  errno = 0;
  VerbError error = FromDestroy(FromErrno("rdma_destroy_id", rdma_destroy_id(id_)));
  if (error) return error;
  id_ = nullptr;
  channel_->Reset();
  return {};
}

}  // namespace rdma
