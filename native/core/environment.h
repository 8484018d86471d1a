// What one JavaScript environment (the main thread or a worker) owns. All mutable state is here; nothing is shared
// between environments.
#pragma once

#include <napi.h>

#include <list>
#include <memory>

#include "datapath/doorbell.h"
#include "handles/ah_handle.h"
#include "handles/owner.h"

namespace rdma {

class Cell;

class Environment {
 public:
  static Environment& Of(Napi::Env env) { return *env.GetInstanceData<Environment>(); }
  explicit Environment(Napi::Env env);

  // The class RdmaError of TypeScript: (syscall, errno, detail?) => Error. Handed over once, at load.
  Napi::FunctionReference rdma_error;
  // The class GpuError: (syscall, status, name, text) => Error. Likewise.
  Napi::FunctionReference gpu_error;

  // Where the data path is entered.
  std::shared_ptr<Doorbell> doorbell;
  // Address handles, by the number that work requests name them by. Shared with the handles, whose finalizers come in
  // any order.
  std::shared_ptr<AhTable> ahs = std::make_shared<AhTable>();

  // What the ids of the connection manager are told apart by; 0 is none.
  uint32_t NextCmNumber() {
    if (++last_cm_number_ == 0) last_cm_number_ = 1;
    return last_cm_number_;
  }

  // Live objects, oldest first.
  std::list<Cell*> cells;
  // Objects that garbage collection found open.
  uint32_t leaks = 0;

 private:
  uint32_t last_cm_number_ = 0;

  // Runs before the finalizers, which come in any order: lets go of everything, newest first.
  static void Cleanup(void* self);
};

}  // namespace rdma
