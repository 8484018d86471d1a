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

void FdPoller::Watch() {
  auto* handle = reinterpret_cast<uv_handle_t*>(&poll_);
  if (closing_ || given_up_ || uv_is_active(handle) != 0) return;
  uv_poll_start(&poll_, UV_READABLE,
                [](uv_poll_t* poll, int, int) { static_cast<FdPoller*>(poll->data)->on_readable_(); });
  uv_unref(handle);
}

void FdPoller::Start() {
  Watch();
  if (!closing_) uv_ref(reinterpret_cast<uv_handle_t*>(&poll_));
}

void FdPoller::Stop() {
  if (!closing_) uv_unref(reinterpret_cast<uv_handle_t*>(&poll_));
}

void FdPoller::GiveUp() {
  given_up_ = true;
  if (!closing_) uv_poll_stop(&poll_);
}

void FdPoller::Pause() {
  if (!closing_) uv_poll_stop(&poll_);
}

void FdPoller::Close() {
  if (closing_) return;
  closing_ = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&poll_), [](uv_handle_t* handle) {
    auto* self = static_cast<FdPoller*>(handle->data);
    napi_remove_async_cleanup_hook(self->cleanup_);
    delete self;
  });
}

void CallFromLoop(napi_env env, napi_ref callback, const std::vector<uint32_t>& numbers) {
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value function = nullptr;
  napi_value global = nullptr;
  std::vector<napi_value> arguments(numbers.size());
  bool is_ready = napi_get_reference_value(env, callback, &function) == napi_ok && function != nullptr &&
                  napi_get_global(env, &global) == napi_ok;
  for (size_t i = 0; is_ready && i < numbers.size(); i++) {
    is_ready = napi_create_uint32(env, numbers[i], &arguments[i]) == napi_ok;
  }
  napi_value exception = nullptr;
  if (is_ready &&
      napi_make_callback(env, nullptr, global, function, arguments.size(), arguments.data(), nullptr) ==
          napi_pending_exception &&
      napi_get_and_clear_last_exception(env, &exception) == napi_ok) {
    napi_fatal_exception(env, exception);
  }
  napi_close_handle_scope(env, scope);
}

}  // namespace rdma
