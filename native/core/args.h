// Readers of arguments and of option objects. TypeScript has checked ranges and named the argument; these check the
// type only, so that nothing wrong reaches C.
#pragma once

#include <napi.h>

#include <cstdint>
#include <string>

#include "core/errors.h"

namespace rdma {

inline uint32_t ToUint32(Napi::Env env, napi_value value, const char* name) {
  uint32_t number = 0;
  if (napi_get_value_uint32(env, value, &number) != napi_ok) ThrowType(env, std::string(name) + " is not a number");
  return number;
}

inline uint32_t Uint32Arg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return ToUint32(info.Env(), info[index], name);
}

inline uint32_t Uint32Field(const Napi::Object& object, const char* name) {
  return ToUint32(object.Env(), object.Get(name), name);
}

inline std::string StringArg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (!info[index].IsString()) ThrowType(info.Env(), std::string(name) + " is not a string");
  return info[index].As<Napi::String>().Utf8Value();
}

inline Napi::Object ObjectArg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (!info[index].IsObject()) ThrowType(info.Env(), std::string(name) + " is not an object");
  return info[index].As<Napi::Object>();
}

inline size_t SizeArg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  // Lengths and offsets are safe integers. napi_get_value_int64() would make 0 of what is not finite.
  constexpr double kMaxSafeInteger = 9007199254740991.0;
  double number = -1;
  if (napi_get_value_double(info.Env(), info[index], &number) != napi_ok || !(number >= 0) ||
      number > kMaxSafeInteger) {
    ThrowType(info.Env(), std::string(name) + " is not a length");
  }
  return static_cast<size_t>(number);
}

inline uint64_t Uint64Arg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  uint64_t number = 0;
  bool lossless = false;
  if (napi_get_value_bigint_uint64(info.Env(), info[index], &number, &lossless) != napi_ok || !lossless) {
    ThrowType(info.Env(), std::string(name) + " is not a bigint of 64 bits");
  }
  return number;
}

// How many entries of something: more than any device has would only exhaust the memory, which V8 does not survive.
inline size_t CountArg(const Napi::CallbackInfo& info, size_t index, const char* name, uint32_t max) {
  const uint32_t count = Uint32Arg(info, index, name);
  if (count > max) ThrowType(info.Env(), std::string(name) + " is too large");
  return count;
}

}  // namespace rdma
