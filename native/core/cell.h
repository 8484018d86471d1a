// What JavaScript holds of a verbs object: a plain object with a type tag that wraps a Cell, which has a share of the
// C++ owner. V8 checks the class of a receiver but not of an argument, so every handle is an argument with a tag.
#pragma once

#include <napi.h>

#include <list>
#include <memory>
#include <string>

#include "core/environment.h"
#include "core/errors.h"
#include "handles/owner.h"

namespace rdma {

class Cell {
 public:
  // Wraps a share of the owner into a new object of that tag.
  static Napi::Object Wrap(Napi::Env env, const napi_type_tag& tag, const char* name, std::shared_ptr<Owner> owner);
  // The cell behind an argument; throws ERR_INVALID_ARG_TYPE when it is not one of that tag.
  static Cell& From(Napi::Env env, napi_value value, const napi_type_tag& tag, const char* name);

  // Destroys the object; throws and leaves it open when the destroy verb fails. Idempotent.
  void Close(Napi::Env env);
  // Lets go of the share: the destroy verb runs with the last one.
  void Release();

  const std::shared_ptr<Owner>& owner() const { return owner_; }

 private:
  Cell(Environment& environment, const char* name, std::shared_ptr<Owner> owner);
  static void Finalize(napi_env env, void* self, void* hint);

  Environment& environment_;
  const char* const name_;
  std::shared_ptr<Owner> owner_;
  std::list<Cell*>::iterator place_;
};

// The tag of an owner's handles; a specialisation for each class that JavaScript holds.
template <class T>
struct HandleType;

#define RDMA_HANDLE_TYPE(T, name_, low)                                \
  template <>                                                          \
  struct HandleType<T> {                                               \
    static constexpr napi_type_tag tag = {0x6e6f64652d72646dULL, low}; \
    static constexpr const char* name = name_;                         \
  }

template <class T>
Napi::Object WrapHandle(Napi::Env env, std::shared_ptr<T> owner) {
  return Cell::Wrap(env, HandleType<T>::tag, HandleType<T>::name, std::move(owner));
}

// The owner behind a handle; throws for a wrong object, and ERR_RDMA_CLOSED for a closed one.
template <class T>
std::shared_ptr<T> ToHandle(Napi::Env env, napi_value value) {
  const Cell& cell = Cell::From(env, value, HandleType<T>::tag, HandleType<T>::name);
  if (!cell.owner()) ThrowClosed(env, HandleType<T>::name);
  return std::static_pointer_cast<T>(cell.owner());
}

template <class T>
std::shared_ptr<T> HandleArg(const Napi::CallbackInfo& info, size_t index) {
  return ToHandle<T>(info.Env(), info[index]);
}

// The owners behind an array of handles, in its order.
template <class T>
std::list<std::shared_ptr<T>> HandleListArg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (!info[index].IsArray()) ThrowType(info.Env(), std::string(name) + " is not an array");
  auto array = info[index].As<Napi::Array>();
  std::list<std::shared_ptr<T>> handles;
  for (uint32_t i = 0; i < array.Length(); i++) handles.push_back(ToHandle<T>(info.Env(), array.Get(i)));
  return handles;
}

}  // namespace rdma
