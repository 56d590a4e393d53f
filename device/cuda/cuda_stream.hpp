// A stream of a CUDA device. Copies, events and the work that launch() queues on native() go to the
// driver at once. The first failure stays with the stream; later entries are dropped here and do
// not reach the driver.
#pragma once

#include <memory>
#include <string>

#include "device/cuda/cuda_event.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace sluice::device {

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaQueue> queue) : queue_(std::move(queue)) {}
  // Waits up to kDefaultDeadlineSeconds for the GPU; then abandons the remaining work
  // to the driver.
  ~CudaStream() override;

  void launch(std::function<void()> work, std::span<const MemoryAccess> accesses) override;
  void copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize(Deadline deadline) override;
  void* native() const override { return queue_->handle(); }

 private:
  void copy_piece(std::byte* destination, const std::byte* source, std::uint64_t bytes,
                  CopyKind kind);
  bool drain(Deadline deadline) noexcept;  // false: not idle by then; the context is current

  const std::shared_ptr<CudaQueue> queue_;
};

}  // namespace sluice::device
