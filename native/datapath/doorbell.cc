#include "datapath/doorbell.h"

#include <cerrno>

#include "core/environment.h"

namespace rdma {

Doorbell::Doorbell(Napi::Env env) {
  Napi::ArrayBuffer memory = Napi::ArrayBuffer::New(env, kDoorbellWords * sizeof(int32_t));
  words_ = static_cast<int32_t*>(memory.Data());
  memory_ = Napi::Persistent(memory);
}

void Doorbell::Export(Napi::Object exports) {
  Napi::Env env = exports.Env();
  exports.Set("doorbell", memory_.Value());
  napi_value function = nullptr;
  NAPI_THROW_IF_FAILED_VOID(env, napi_create_function(env, "ring", NAPI_AUTO_LENGTH, Ring, this, &function));
  exports.Set("ring", Napi::Value(env, function));
}

napi_value Doorbell::Ring(napi_env env, napi_callback_info info) {
  void* data = nullptr;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  const auto* self = static_cast<Doorbell*>(data);
  const auto number = static_cast<uint32_t>(self->words_[kList]);
  if (number < self->lists_.size() && self->lists_[number]) {
    self->lists_[number]->Ring(self->words_);
  } else {
    self->words_[kResult] = -EBADF;
    self->words_[kIndex] = 0;
  }
  return nullptr;
}

Napi::Object Doorbell::Publish(Napi::ArrayBuffer memory, std::unique_ptr<SharedList> list) {
  Napi::Env env = memory.Env();
  // Shared, since the finalizers of an environment that ends come in any order.
  auto doorbell = Environment::Of(env).doorbell;
  if (doorbell->free_.empty()) {
    doorbell->free_.push_back(static_cast<uint32_t>(doorbell->lists_.size()));
    doorbell->lists_.emplace_back();
  }
  const uint32_t number = doorbell->free_.back();
  memory.AddFinalizer(
      [doorbell, number](Napi::Env, void*) {
        doorbell->lists_[number].reset();
        doorbell->free_.push_back(number);
      },
      static_cast<void*>(nullptr));
  doorbell->free_.pop_back();
  doorbell->lists_[number] = std::move(list);

  Napi::Object object = Napi::Object::New(env);
  object.Set("memory", memory);
  object.Set("list", Napi::Number::New(env, number));
  return object;
}

}  // namespace rdma
