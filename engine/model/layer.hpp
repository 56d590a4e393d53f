// A unit of a model as a layer with explicit passes (no tape).
//
// A layer declares its tensors, the parts that its forward pass saves for backward, and the memory
// of each pass before anything runs, so that the planner can count bytes. Its passes work on
// addresses of the caller and allocate nothing. Backward is split: `backward_input` computes the
// gradient of the input and keeps the gradients of its linear outputs in `context`;
// `backward_weight` computes the parameter gradients from them.
//
// A layer is one of the ranks of a tensor group, most often of one rank, and holds its part of each
// tensor (tensor_share.hpp). Its passes consist of segments; what a cut between two of them
// declares must be summed over the ranks before the later one runs. With one rank a part is the
// whole, so the segments run after each other (docs/design/tensor.md).
//
// rows = micro_batch * seq; activations are [rows, hidden], row-major, of `dtype`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "engine/model/unit_layout.hpp"
#include "engine/schedule/pass_segments.hpp"
#include "engine/schedule/saved_part.hpp"
#include "kernels/kernels.hpp"

namespace sluice::model {

struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t seq = 1;
  DType dtype = DType::kBF16;
  std::int64_t rows() const { return micro_batch * seq; }
};

// The addresses of a unit's saved region: the whole region in one piece, or ranges of it apart from
// each other. Each half of backward gets the ranges that it reads.
class SavedRanges {
 public:
  SavedRanges() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): an address means the whole region
  SavedRanges(std::byte* whole) { add(0, UINT64_MAX, whole); }
  void add(std::uint64_t begin, std::uint64_t end, std::byte* data) {
    if (data != nullptr) ranges_.push_back({begin, end, data});
  }
  // The address of the region's bytes [begin, begin + bytes); null if the pass does not have them.
  std::byte* at(std::uint64_t begin, std::uint64_t bytes) const {
    for (const Range& range : ranges_) {
      if (range.begin <= begin && bytes <= range.end - begin && begin < range.end) {
        return range.data + (begin - range.begin);
      }
    }
    return nullptr;
  }

 private:
  struct Range {
    std::uint64_t begin = 0, end = 0;
    std::byte* data = nullptr;
  };
  std::vector<Range> ranges_;
};

// Addresses of one pass of one unit and micro-batch. Unused ones are null.
struct PassBuffers {
  const std::byte* weights = nullptr;       // this unit's window
  const std::byte* tied_weights = nullptr;  // head of a tied model: the embedding unit's window
  const std::int32_t* tokens = nullptr;     // [rows]
  const std::int32_t* targets = nullptr;    // [rows]
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  SavedRanges saved;                // written by forward, read by backward
  schedule::PartMask remade = 0;    // of recompute: the parts of `saved` to make
  schedule::SegmentRange segments;  // of the pass: those to run
  std::byte* context = nullptr;
  const std::byte* grad_output = nullptr;
  std::byte* grad_input = nullptr;
  std::byte* grad_weights = nullptr;       // this unit's gradient window, written whole
  std::byte* tied_grad_weights = nullptr;  // head of a tied model: gradient of this use
  double* loss = nullptr;                  // sum over rows
  float loss_scale = 1.0f;
  std::byte* workspace = nullptr;
};

// The memory of the passes.
struct PassNeeds {
  std::uint64_t output_bytes = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t forward_workspace_bytes = 0;
  std::uint64_t backward_input_workspace_bytes = 0;
  std::uint64_t backward_weight_workspace_bytes = 0;
  // A pass keeps its workspace from its first segment to its last.
  schedule::UnitSegments segments;
};

class Layer {
 public:
  explicit Layer(UnitLayout layout) : layout_(std::move(layout)) {}
  virtual ~Layer() = default;
  const UnitLayout& layout() const { return layout_; }
  // The saved parts in order. Parts with the same readers are neighbours, so that they can
  // move as one. kernels: those that will run the passes; they decide on the operation that makes a
  // part.
  virtual std::vector<schedule::SavedPart> saves(const BatchShape& shape,
                                                 const kernels::Kernels& kernels) const = 0;
  virtual PassNeeds needs(const BatchShape& shape, const kernels::Kernels& kernels) const = 0;

  virtual void forward(kernels::Kernels& kernels, const BatchShape& shape,
                       const PassBuffers& at) const = 0;
  // Recomputes the parts `at.remade` of the saved region, with the bits that forward gave them.
  // `at` holds the weights, the input and the parts that they are made from. Runs no operation that
  // makes none of these parts. If all parts are to be made, at.output may be given too. Layers that
  // cannot be recomputed throw InternalError.
  virtual void recompute(kernels::Kernels& kernels, const BatchShape& shape,
                         const PassBuffers& at) const;
  // For the head: forward, loss and the gradient of the normed input. Others throw InternalError.
  virtual void loss(kernels::Kernels& kernels, const BatchShape& shape,
                    const PassBuffers& at) const;
  // The embedding throws InternalError: its input has no gradient.
  virtual void backward_input(kernels::Kernels& kernels, const BatchShape& shape,
                              const PassBuffers& at) const = 0;
  virtual void backward_weight(kernels::Kernels& kernels, const BatchShape& shape,
                               const PassBuffers& at) const = 0;

 protected:
  // Address of tensor `index` of the layout in a window of elements of `dtype`.
  template <typename Byte>
  Byte* tensor(Byte* window, std::size_t index, DType dtype) const {
    return window + layout_.tensors()[index].first_elem * dtype_bytes(dtype);
  }
  // Zeroes the gaps of a gradient window; call before its tensors are written.
  void clear_gaps(kernels::Kernels& kernels, std::byte* grad_window, DType dtype) const;

 private:
  UnitLayout layout_;
};

}  // namespace sluice::model
