// Runs a verb that may block on a thread of libuv's pool, and settles a promise with what it returned.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/errors.h"

namespace rdma {

template <class T>
class PromiseWorker {
 public:
  // Runs on the pool thread; no Node-API there, so it sees no environment.
  using Execute = std::function<Outcome<T>()>;
  // Runs on the loop: makes the value that the promise resolves with.
  using Finish = std::function<napi_value(Napi::Env, T)>;

  static Napi::Value Queue(Napi::Env env, const char* verb, Execute execute, Finish finish) {
    auto worker = std::unique_ptr<PromiseWorker>(new PromiseWorker(env, std::move(execute), std::move(finish)));
    napi_value promise = nullptr;
    NAPI_THROW_IF_FAILED(env, napi_create_promise(env, &worker->deferred_, &promise), env.Undefined());
    NAPI_THROW_IF_FAILED(env,
                         napi_create_async_work(env, nullptr, Napi::String::New(env, verb), OnExecute, OnComplete,
                                                worker.get(), &worker->work_),
                         env.Undefined());
    NAPI_THROW_IF_FAILED(env, napi_queue_async_work(env, worker->work_), env.Undefined());
    worker.release();  // NOLINT(bugprone-unused-return-value): OnComplete deletes it
    return Napi::Value(env, promise);
  }

 private:
  PromiseWorker(Napi::Env env, Execute execute, Finish finish)
      : env_(env), execute_(std::move(execute)), finish_(std::move(finish)) {}

  static void OnExecute(napi_env, void* data) {
    auto* self = static_cast<PromiseWorker*>(data);
    self->outcome_ = self->execute_();
  }

  // While the environment goes down every call into JavaScript fails; the outcome is dropped then, and with it the
  // object that it may hold.
  static void OnComplete(napi_env, napi_status status, void* data) {
    std::unique_ptr<PromiseWorker> self(static_cast<PromiseWorker*>(data));
    napi_delete_async_work(self->env_, self->work_);
    self->execute_ = nullptr;  // lets go of the shares that it held
    if (status == napi_cancelled) return;
    Napi::HandleScope scope(self->env_);
    try {
      if (self->outcome_.error) {
        napi_reject_deferred(self->env_, self->deferred_, MakeVerbError(self->env_, self->outcome_.error).Value());
      } else {
        napi_resolve_deferred(self->env_, self->deferred_, self->finish_(self->env_, std::move(self->outcome_.value)));
      }
    } catch (const Napi::Error& error) {
      napi_reject_deferred(self->env_, self->deferred_, error.Value());
    }
  }

  Napi::Env env_;
  Execute execute_;
  Finish finish_;
  Outcome<T> outcome_;
  napi_deferred deferred_ = nullptr;
  napi_async_work work_ = nullptr;
};

}  // namespace rdma
