#include "core/errors.h"

#include "core/environment.h"
#include "rdma_core/library.h"

namespace rdma {

Napi::Error MakeVerbError(Napi::Env env, const VerbError& error) {
  if (error.driver != nullptr) {
    const Napi::FunctionReference& type = Environment::Of(env).gpu_error;
    if (type.IsEmpty()) return Napi::Error::New(env, std::string(error.verb) + " failed before setErrorClass()");
    return Napi::Error(env, type.New({Napi::String::New(env, error.verb), Napi::Number::New(env, error.err),
                                      Napi::String::New(env, error.driver->name(error.err)),
                                      Napi::String::New(env, error.driver->text(error.err))}));
  }
  const MissingFunction missing = TakeMissingFunction();
  Napi::Value detail = env.Undefined();
  if (error.err == EOPNOTSUPP && missing.name != nullptr) {
    detail = Napi::String::New(
        env, std::string("this library has no ") + missing.name + ", which came with rdma-core " + missing.since);
  }
  const Napi::FunctionReference& type = Environment::Of(env).rdma_error;
  if (type.IsEmpty()) return Napi::Error::New(env, std::string(error.verb) + " failed before setErrorClass()");
  return Napi::Error(env, type.New({Napi::String::New(env, error.verb), Napi::Number::New(env, error.err), detail}));
}

namespace {
[[noreturn]] void ThrowCoded(Napi::Error error, const char* code) {
  error.Set("code", Napi::String::New(error.Env(), code));
  throw error;
}
}  // namespace

void ThrowType(Napi::Env env, const std::string& message) {
  ThrowCoded(Napi::TypeError::New(env, message), "ERR_INVALID_ARG_TYPE");
}

void ThrowClosed(Napi::Env env, const char* name) {
  ThrowCoded(Napi::Error::New(env, std::string("The ") + name + " is closed"), "ERR_RDMA_CLOSED");
}

}  // namespace rdma
