#include "core/fd_poller.h"

#include <memory>

#include "core/errors.h"

namespace rdma {

FdPoller* FdPoller::Create(Napi::Env env, int fd, std::function<void()> on_readable) {
  uv_loop_t* loop = nullptr;
  NAPI_THROW_IF_FAILED(env, napi_get_uv_event_loop(env, &loop), nullptr);
  auto* poller = new FdPoller(std::move(on_readable));
  const int rc = uv_poll_init(loop, &poller->poll_, fd);
  if (rc != 0) {
    delete poller;
    throw MakeVerbError(env, {"uv_poll_init", -rc});
  }
  poller->poll_.data = poller;
  napi_add_async_cleanup_hook(
      env, [](napi_async_cleanup_hook_handle, void* self) { static_cast<FdPoller*>(self)->Close(); }, poller,
      &poller->cleanup_);
  return poller;
}

void FdPoller::Start() {
  if (closing_) return;
  uv_poll_start(&poll_, UV_READABLE,
                [](uv_poll_t* handle, int, int) { static_cast<FdPoller*>(handle->data)->on_readable_(); });
}

void FdPoller::Stop() {
  if (!closing_) uv_poll_stop(&poll_);
}

void FdPoller::Close() {
  if (closing_) return;
  Stop();
  closing_ = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&poll_), [](uv_handle_t* handle) {
    auto* self = static_cast<FdPoller*>(handle->data);
    napi_remove_async_cleanup_hook(self->cleanup_);
    delete self;
  });
}

}  // namespace rdma
