#include "handles/cq_handle.h"

#include <fcntl.h>

namespace rdma {

Outcome<std::shared_ptr<ChannelHandle>> ChannelHandle::Create(std::shared_ptr<ContextHandle> context) {
  errno = 0;
  auto channel = FromPtr("ibv_create_comp_channel", ibv_create_comp_channel(context->get()));
  if (channel.error) return channel.error;
  std::shared_ptr<ChannelHandle> handle(new ChannelHandle(std::move(context), channel.value));
  const int flags = fcntl(channel.value->fd, F_GETFL);
  if (flags < 0 || fcntl(channel.value->fd, F_SETFL, flags | O_NONBLOCK) < 0) return VerbError{"fcntl", errno};
  return handle;
}

VerbError ChannelHandle::Destroy() {
  if (channel_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel_)));
  if (error) return error;
  channel_ = nullptr;
  context_.Reset();
  return {};
}

Outcome<std::shared_ptr<CqHandle>> CqHandle::Create(std::shared_ptr<ContextHandle> context, int cqe,
                                                    std::shared_ptr<ChannelHandle> channel, int comp_vector,
                                                    uint32_t id) {
  ibv_context* device = context->get();
  ibv_comp_channel* events = channel ? channel->get() : nullptr;
  std::shared_ptr<CqHandle> handle(new CqHandle(std::move(context), std::move(channel), id));
  errno = 0;
  auto cq = FromPtr("ibv_create_cq", ibv_create_cq(device, cqe, handle.get(), events, comp_vector));
  if (cq.error) return cq.error;
  handle->cq_ = cq.value;
  return handle;
}

void CqHandle::CountEvent() {
  constexpr unsigned int kBatch = 128;
  if (++unacknowledged_ >= kBatch) Acknowledge();
}

void CqHandle::Acknowledge() {
  if (unacknowledged_ != 0) ibv_ack_cq_events(cq_, unacknowledged_);
  unacknowledged_ = 0;
}

VerbError CqHandle::Destroy() {
  if (cq_ == nullptr) return {};
  Acknowledge();
  VerbError error = FromDestroy(FromRet("ibv_destroy_cq", ibv_destroy_cq(cq_)));
  if (error) return error;
  cq_ = nullptr;
  context_.Reset();
  channel_.Reset();
  return {};
}

}  // namespace rdma
