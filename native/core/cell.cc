#include "core/cell.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace rdma {

Cell::Cell(Environment& environment, const char* name, std::shared_ptr<Owner> owner)
    : environment_(environment), name_(name), owner_(std::move(owner)) {
  place_ = environment_.cells.insert(environment_.cells.end(), this);
}

Napi::Object Cell::Wrap(Napi::Env env, const napi_type_tag& tag, const char* name, std::shared_ptr<Owner> owner) {
  Napi::Object object = Napi::Object::New(env);
  auto cell = std::unique_ptr<Cell>(new Cell(Environment::Of(env), name, std::move(owner)));
  if (napi_wrap(env, object, cell.get(), Finalize, nullptr, nullptr) != napi_ok) {
    cell->Release();
    throw Napi::Error::New(env);
  }
  Cell* const wrapped = cell.release();  // the object owns it now, and deletes it
  // Fails in a thread that is being terminated, between one call and the next.
  if (napi_type_tag_object(env, object, &tag) != napi_ok) {
    wrapped->Release();
    throw Napi::Error::New(env);
  }
  return object;
}

Cell& Cell::From(Napi::Env env, napi_value value, const napi_type_tag& tag, const char* name) {
  napi_valuetype type = napi_undefined;
  bool matches = false;
  void* cell = nullptr;
  if (napi_typeof(env, value, &type) == napi_ok && type == napi_object) {
    napi_check_object_type_tag(env, value, &tag, &matches);
  }
  if (!matches || napi_unwrap(env, value, &cell) != napi_ok) {
    ThrowType(env, std::string("The handle is not a ") + name);
  }
  return *static_cast<Cell*>(cell);
}

void Cell::Close(Napi::Env env) {
  if (!owner_) return;
  // A parent whose children wait for their finalizers goes with the last of them.
  if (!owner_->has_children()) Check(env, owner_->Destroy());
  Release();
}

void Cell::Release() {
  if (!owner_) return;
  environment_.cells.erase(place_);
  owner_.reset();
}

void Cell::Finalize(napi_env, void* self, void*) {
  std::unique_ptr<Cell> cell(static_cast<Cell*>(self));
  if (cell->owner_) {
    cell->environment_.leaks++;
    // For who looks for the place that forgot to close it.
    if (std::getenv("NODE_RDMA_TRACE_LEAKS") != nullptr) {
      (void)fprintf(stderr, "node-rdma: a %s was collected open\n", cell->name_);
    }
  }
  cell->Release();
}

}  // namespace rdma
