// The gradient of one unit on its way to a home in pinned memory or on storage: one micro-batch, or
// the parts of one round. Pieces flow through three stages: bring() downloads the gradient and
// reads the earlier sum, add() adds them, and put_back() writes the sum to storage.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/rank_exchange.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class HostGradientPath {
 public:
  struct How {
    // The parts are added to a sum; else the only part is the gradient, as its home has it.
    bool adds = false;
    bool begins = false;  // the first part begins the sum
    bool ends = false;    // the home is complete with these parts
    bool normed = false;  // and its norm is taken here
  };
  // sum: the pieces that hold the sum afterwards. If sums wait in pinned memory between
  // micro-batches, it holds those of the previous micro-batch before.
  HostGradientPath(StepBuilder& builder, std::int32_t unit, std::vector<GradientPart> parts,
                   How how, std::vector<BufferId>& sum);
  void emit();

 private:
  const StepModel& model() const { return builder_.model(); }
  // The i-th piece of a part, in pinned memory.
  BufferId& incoming(std::size_t i, std::size_t part) {
    return incoming_[i * parts_.size() + part];
  }
  void bring(std::size_t i);
  void bring_sum(std::size_t i);
  void add(std::size_t i);
  void put_back(std::size_t i);

  StepBuilder& builder_;
  std::int32_t unit_;
  std::vector<GradientPart> parts_;
  How how_;
  BufferId home_;
  bool on_storage_;
  bool waits_;  // the sum, in pinned memory, from micro-batch to micro-batch
  std::vector<ElemRange> pieces_;
  std::vector<BufferId> incoming_;  // by piece and part, in 16 bits
  std::vector<BufferId>& sum_;      // the content of the home afterwards
};

// Emits the norm of a piece on the optimizer lane, while the piece is in pinned memory. gradient:
// the buffer with the piece.
void emit_host_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient, ElemRange range,
                    std::int32_t piece);

}  // namespace sluice::schedule
