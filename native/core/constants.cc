// The constants and struct layouts that this binary was compiled with. TypeScript's copies are generated from the same
// two lists; the layouts are compared when the addon is loaded, the constants in a test.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>

#include "datapath/wc_extra.h"
#include "verbs/verbs.h"

namespace rdma {

void ExportConstants(Napi::Object exports) {
  Napi::Env env = exports.Env();

  Napi::Object constants = Napi::Object::New(env);
#define RDMA_ENUM(object, prefix, c, doc)
#define RDMA_FLAGS(object, prefix, c, doc)
#define RDMA_VALUE(name, doc) SetNumber(constants, #name, static_cast<double>(name));
#define RDMA_VALUE_SINCE(name, number, since, doc) SetNumber(constants, #name, number);
#include "constants.def"
  exports.Set("constants", constants);

  Napi::Object layout = Napi::Object::New(env);
  Napi::Object fields;
#define RDMA_STRUCT(name, type)            \
  fields = Napi::Object::New(env);         \
  SetNumber(fields, "size", sizeof(type)); \
  layout.Set(#name, fields);
#define RDMA_FIELD(type, name, field) SetNumber(fields, #name, offsetof(type, field));
#include "layout.def"
  exports.Set("layout", layout);
}

}  // namespace rdma
