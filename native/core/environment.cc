#include "core/environment.h"

#include "core/cell.h"

namespace rdma {

Environment::Environment(Napi::Env env) : doorbell(std::make_shared<Doorbell>(env)) {
  napi_add_env_cleanup_hook(env, Cleanup, this);
}

void Environment::Cleanup(void* self) {
  auto& cells = static_cast<Environment*>(self)->cells;
  while (!cells.empty()) cells.back()->Release();
}

}  // namespace rdma
