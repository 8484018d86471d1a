// The owners of verbs objects. Each holds its parents by shared_ptr, so a parent's verbs object outlives its children's
// in any order of garbage collection, worker termination or exit. No Node-API here: owners are made on pool threads
// too.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "handles/outcome.h"

namespace rdma {

class Owner {
 public:
  Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  virtual ~Owner() = default;

  // Calls the destroy verb. On success the object is dead and has let go of its parents, whoever still has a share of
  // it, and another call does nothing; on failure it lives on.
  virtual VerbError Destroy() = 0;

  // Verbs objects that need this one. While there are any, Destroy() waits for the last share to go.
  bool has_children() const { return children_.load() != 0; }

 private:
  template <class P>
  friend class Parent;
  std::atomic<int> children_{0};
};

// A child's share of its parent.
template <class P>
class Parent {
 public:
  explicit Parent(std::shared_ptr<P> parent) : parent_(std::move(parent)) { count(1); }
  Parent(const Parent&) = delete;
  Parent& operator=(const Parent&) = delete;
  ~Parent() { Reset(); }
  void Reset() { Replace(nullptr); }
  void Replace(std::shared_ptr<P> parent) {
    count(-1);
    parent_ = std::move(parent);
    count(1);
  }
  P* operator->() const { return parent_.get(); }
  const std::shared_ptr<P>& share() const { return parent_; }
  explicit operator bool() const { return parent_ != nullptr; }

 private:
  void count(int n) {
    if (parent_) static_cast<Owner&>(*parent_).children_ += n;
  }
  std::shared_ptr<P> parent_;
};

}  // namespace rdma
