// The ways a native function fails. Each throws, which ends the method; none is called through a C callback.
#pragma once

#include <napi.h>

#include <string>

#include "handles/outcome.h"

namespace rdma {

// The RdmaError for a verb that failed.
Napi::Error MakeVerbError(Napi::Env env, const VerbError& error);

// ERR_INVALID_ARG_TYPE and ERR_RDMA_CLOSED. TypeScript checks first and names the argument; these are what stands
// between a mistake there and a crash.
[[noreturn]] void ThrowType(Napi::Env env, const std::string& message);
[[noreturn]] void ThrowClosed(Napi::Env env, const char* name);

inline void Check(Napi::Env env, const VerbError& error) {
  if (error) throw MakeVerbError(env, error);
}

template <class T>
T Unwrap(Napi::Env env, Outcome<T> outcome) {
  Check(env, outcome.error);
  return std::move(outcome.value);
}

}  // namespace rdma
