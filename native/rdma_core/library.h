// A shared library that is opened at first use, once per process, and never closed.
#pragma once

#include <mutex>
#include <string>

namespace rdma {

class Library {
 public:
  // `soname` is what the dynamic loader is asked for; the environment variable `override` names another file.
  constexpr Library(const char* soname, const char* override_variable)
      : soname_(soname), override_variable_(override_variable) {}

  // The address of a function, or null when the library or the function is missing.
  void* Symbol(const char* name) { return Open() ? Lookup(name) : nullptr; }

  // True when the library is there.
  bool Open();

  // What was asked for, and what the loader said when it failed (empty when it did not).
  const char* path() const { return path_; }
  const std::string& error() const { return *error_; }

 private:
  void* Lookup(const char* name) const;

  const char* soname_;
  const char* override_variable_;
  const char* path_ = nullptr;
  std::once_flag once_;
  void* handle_ = nullptr;
  // Never freed: other threads may still ask while static destructors run at exit.
  std::string* error_ = nullptr;
};

// A function that this library is too old to have; set on the calling thread by a trampoline that found none.
struct MissingFunction {
  const char* name;
  const char* since;  // the rdma-core release that has it
};
// Returns it and forgets it.
MissingFunction TakeMissingFunction();
void SetMissingFunction(const char* name, const char* since);

Library& Libibverbs();
Library& Libmlx5();
Library& Librdmacm();

// Whether a function is of a shared object whose file's name begins so: a provider's, say.
bool IsFunctionOf(const void* function, const char* file);

}  // namespace rdma
