// The hand-over between an update's pass and a host program that updates some tensors itself.
//
// The pass runs on threads of the executor. At each unit of the program's own it offers the unit's
// tensors, which then lie in pinned memory, and waits. The program takes them one at a time. When
// it asks for the tensor after a unit's last one, the unit goes back to the pass, which writes its
// state home and offers the next. Meanwhile other lanes read the units to come.
//
// Thread-safe: one thread of the pass, one of the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "base/mutex.hpp"

namespace sluice::host {

// One parameter of an update that the program makes.
struct CallerPart {
  std::uint32_t parameter = 0;
  std::byte* weight = nullptr;
  std::byte* gradient = nullptr;
  std::array<std::byte*, 2> moments{};  // null: not kept
  double gradient_factor = 1;           // scale and clip factor: multiply gradients by it
};

class UpdateExchange {
 public:
  explicit UpdateExchange(double deadline_seconds) : deadline_seconds_(deadline_seconds) {}

  // For the pass: returns when the program has updated all parts. Throws TimeoutError, and Error
  // after abandon().
  void offer(std::vector<CallerPart> parts);
  // The pass has ended, with this error or none.
  void finish(std::exception_ptr error) noexcept;

  // For the program: the next part; the one before is updated. Nothing: the pass has ended well.
  // Throws the pass's error, and TimeoutError.
  std::optional<CallerPart> next();
  // The program makes no more updates: the pass fails at its next unit.
  void abandon() noexcept;

 private:
  const double deadline_seconds_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<CallerPart> parts_ SLUICE_GUARDED_BY(mutex_);
  std::size_t taken_ SLUICE_GUARDED_BY(mutex_) = 0;  // of parts_
  bool is_offered_ SLUICE_GUARDED_BY(mutex_) = false;
  bool is_finished_ SLUICE_GUARDED_BY(mutex_) = false;
  bool is_abandoned_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::host
