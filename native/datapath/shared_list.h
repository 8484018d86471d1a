// The memory that the data path shares with TypeScript: an array of C structs in an ArrayBuffer, written and read in
// place at the offsets of lib/native/layout.gen.ts. What would be arguments and results are words in front of it, and
// the native function finds everything behind its closure pointer: a call costs one crossing and nothing else.
//
// The ArrayBuffer is V8's own memory, so this works too where V8 forbids memory of others; V8 does not move it.
#pragma once

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/errors.h"

namespace rdma {

// Words in front of the structs; kHeaderBytes keeps those aligned.
enum HeaderWord { kCount = 0, kResult = 1, kIndex = 2 };
constexpr size_t kHeaderBytes = 64;

class SharedList {
 public:
  SharedList(const SharedList&) = delete;
  SharedList& operator=(const SharedList&) = delete;
  virtual ~SharedList() = default;

 protected:
  SharedList(Napi::Env env, size_t bytes) {
    Napi::ArrayBuffer buffer = Napi::ArrayBuffer::New(env, kHeaderBytes + bytes);
    data_ = static_cast<uint8_t*>(buffer.Data());
    memory_ = Napi::Persistent(buffer);
  }

  // The {memory, call} that TypeScript gets. The function owns the list: it goes when the function is collected.
  static Napi::Object Publish(Napi::Env env, std::unique_ptr<SharedList> list, napi_callback call) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("memory", list->memory_.Value());
    napi_value function = nullptr;
    NAPI_THROW_IF_FAILED(env, napi_create_function(env, nullptr, 0, call, list.get(), &function), object);
    NAPI_THROW_IF_FAILED(
        env,
        napi_add_finalizer(
            env, function, list.get(), [](napi_env, void* self, void*) { delete static_cast<SharedList*>(self); },
            nullptr, nullptr),
        object);
    list.release();  // NOLINT(bugprone-unused-return-value): the function owns it now
    object.Set("call", Napi::Value(env, function));
    return object;
  }

  // napi_unwrap() would cost five times what the closure pointer does.
  template <class T>
  static T& Self(napi_env env, napi_callback_info info) {
    void* self = nullptr;
    napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &self);
    return *static_cast<T*>(self);
  }

  int32_t& header(HeaderWord word) const { return reinterpret_cast<int32_t*>(data_)[word]; }
  uint8_t* structs() const { return data_ + kHeaderBytes; }

 private:
  uint8_t* data_;
  Napi::Reference<Napi::ArrayBuffer> memory_;
};

}  // namespace rdma
