// Handles that are numbers and never come back: one that is destroyed is known to be none.
#ifndef RESHARD_TESTS_DOUBLES_SHARED_HANDLE_TABLE_H_
#define RESHARD_TESTS_DOUBLES_SHARED_HANDLE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace doubles {

template <typename Object>
class HandleTable {
 public:
  // The tag makes handles of different kinds different numbers.
  explicit HandleTable(unsigned tag) : next_(std::uintptr_t{tag} << 40) {}

  void* add(std::shared_ptr<Object> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ += 16;
    objects_[next_] = std::move(object);
    return reinterpret_cast<void*>(next_);
  }

  // Null where there is none.
  std::shared_ptr<Object> find(const void* handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Object> take(const void* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Object>> objects;
    for (const auto& [handle, object] : objects_) objects.push_back(object);
    return objects;
  }

  // Takes all objects for which the condition holds.
  template <typename Condition>
  std::vector<std::shared_ptr<Object>> take_if(Condition condition) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Object>> taken;
    for (auto at = objects_.begin(); at != objects_.end();) {
      if (condition(*at->second)) {
        taken.push_back(std::move(at->second));
        at = objects_.erase(at);
      } else {
        ++at;
      }
    }
    return taken;
  }

 private:
  mutable std::mutex mutex_;
  std::uintptr_t next_;
  std::map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_SHARED_HANDLE_TABLE_H_
