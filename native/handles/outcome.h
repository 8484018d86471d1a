// How a verb ended, carried from the thread that called it to the one that tells JavaScript. One helper for each
// return convention of the C libraries; each reads errno in the statement after the call.
#pragma once

#include <cerrno>
#include <utility>

namespace rdma {

// What the statuses of a GPU's driver are called, and say; they are another number space than errno.
struct DriverErrors {
  const char* (*name)(int);
  const char* (*text)(int);
};

struct VerbError {
  const char* verb = nullptr;
  int err = 0;
  // Null where `err` is an errno.
  const DriverErrors* driver = nullptr;
  explicit operator bool() const { return err != 0; }
};

template <class T>
struct Outcome {
  T value{};
  VerbError error;

  Outcome() = default;
  Outcome(T v) : value(std::move(v)) {}  // NOLINT(google-explicit-constructor)
  Outcome(VerbError e) : error(e) {}     // NOLINT(google-explicit-constructor)
};

// NULL with errno set. Some providers forget errno; a failure must not read as success.
template <class T>
Outcome<T*> FromPtr(const char* verb, T* pointer) {
  if (pointer == nullptr) return VerbError{verb, errno != 0 ? errno : EIO};
  return pointer;
}

// 0, or a positive errno value; older providers answer -1 with errno set, or a negative value.
inline VerbError FromRet(const char* verb, int rc) {
  if (rc == 0) return {};
  if (rc == -1) return {verb, errno != 0 ? errno : EIO};
  return {verb, rc < 0 ? -rc : rc};
}

// 0, or -1 with errno set.
inline VerbError FromErrno(const char* verb, int rc) {
  if (rc == 0) return {};
  return {verb, errno != 0 ? errno : EIO};
}

// A destroy verb of a device that is gone answers EIO: the object is gone too.
inline VerbError FromDestroy(VerbError error) { return error.err == EIO ? VerbError{} : error; }

}  // namespace rdma
