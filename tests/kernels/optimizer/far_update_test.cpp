// Elements with numbers and byte offsets of more than 31 or 32 bits. Only that part of the large
// arrays exists. Its update is bit for bit the update at the beginning of small arrays.
#include <array>
#include <utility>

#include "tests/contract/update_chunk.hpp"
#include "tests/kernels/host_backend.hpp"
#include "tests/kernels/optimizer/sparse_memory.hpp"

namespace sluice::kernels::host {
namespace {

using testing::all_formats;
using testing::format_name;
using testing::odd_shapes;
using testing::options_of;
using testing::scalars_of;
using testing::statistics_of;
using testing::tensor_rules;
using testing::UpdateChunk;
using testing::UpdateFormats;

// Elements at the beginning of small arrays, and at element `base` of large ones.
class FarCopy {
 public:
  FarCopy(const OptimizerOptions& options, const UpdateBuffers& near, std::int64_t base,
          std::uint64_t statistics)
      : base_(static_cast<std::uint64_t>(base)), far_(near) {
    const auto elems = static_cast<std::uint64_t>(near.elems);
    far_.elems = base + near.elems;
    far_.grad = add(near.grad, near.grad_dtype, elems);
    far_.weight = add(near.weight, options.weight, elems);
    const auto state = [&](StateKind kind, void* data) -> void* {
      const StateLayout layout = state_layout(options, kind);
      if (data == nullptr) return nullptr;
      return add(data, layout.dtype, layout.extent == StateExtent::kPerTensor ? statistics : elems);
    };
    far_.master = state(StateKind::kMaster, near.master);
    far_.moment1 = state(StateKind::kMoment1, near.moment1);
    far_.moment2 = state(StateKind::kMoment2, near.moment2);
  }
  bool whole() const { return whole_; }
  const UpdateBuffers& buffers() const { return far_; }
  std::vector<ParameterSegment> segments(std::vector<ParameterSegment> near) const {
    for (ParameterSegment& segment : near) {
      segment.begin += static_cast<std::int64_t>(base_);
      segment.end += static_cast<std::int64_t>(base_);
      segment.moment2_begin += base_;
    }
    return near;
  }
  // Holds after both were updated alike.
  bool equal() const {
    bool same = true;
    for (const Array& array : arrays_) {
      same = same &&
             std::memcmp(array.near, array.memory.as<std::byte>() + array.offset, array.bytes) == 0;
    }
    return same;
  }

 private:
  struct Array {
    SparseMemory memory;
    const void* near;
    std::size_t offset, bytes;
  };
  void* add(const void* near, DType dtype, std::uint64_t elems) {
    const std::size_t offset = bytes_of(dtype, base_), bytes = bytes_of(dtype, elems);
    arrays_.push_back({SparseMemory(offset + bytes), near, offset, bytes});
    const SparseMemory& memory = arrays_.back().memory;
    whole_ = whole_ && memory.whole();
    if (!memory.whole()) return nullptr;
    std::memcpy(memory.as<std::byte>() + offset, near, bytes);
    return memory.as<std::byte>();
  }

  std::uint64_t base_;
  UpdateBuffers far_;
  std::vector<Array> arrays_;
  bool whole_ = true;
};

// The limits of 31 bits and of 32 lie inside the updated range.
constexpr std::array<std::int64_t, 2> kBases{(std::int64_t{1} << 31) - 4096,
                                             (std::int64_t{1} << 32) - 4096};

// One update of the same elements, near and far.
void expect_same_far_away(const UpdateChunk& start, std::int64_t base) {
  UpdateChunk near = start;
  near.draw_grad(5);
  const OptimizerOptions& options = near.formats.options;
  const ParameterSegment& last = near.segments.back();
  const FarCopy far(options, near.buffers(), base,
                    last.moment2_begin + statistics_of(options, last.tensor));
  ASSERT_TRUE(far.whole());
  EXPECT_TRUE(far.equal());
  const auto kernels = make_host_kernels({.threads = 2});
  run_update(*kernels, options, near.buffers(), near.segments, scalars_of(7));
  EXPECT_FALSE(near == start);
  EXPECT_FALSE(far.equal());
  run_update(*kernels, options, far.buffers(), far.segments(near.segments), scalars_of(7));
  EXPECT_TRUE(far.equal()) << format_name(near.formats) << " from element " << base;
}

TEST(FarUpdate, ElementwiseRulesInEveryFormat) {
  const std::vector<ParameterSegment> segments{
      {.begin = 0, .end = 777, .weight_decay = 0.1f, .first_key = (1ull << 33) + 5},
      {.begin = 1024, .end = 3 * 4096 - 33, .lr_scale = 0.5f, .first_key = 1ull << 32}};
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd, OptimizerRule::kLion}) {
    for (const UpdateFormats& formats : all_formats(options_of(rule))) {
      if (formats.options.weight != formats.grad) continue;
      UpdateChunk chunk(formats, 3 * 4096, segments);
      chunk.draw_moments(4);
      for (const std::int64_t base : kBases) expect_same_far_away(chunk, base);
    }
  }
}

TEST(FarUpdate, RulesOfWholeTensors) {
  for (const OptimizerOptions& options : tensor_rules()) {
    const UpdateFormats formats{options, DType::kBF16, DType::kF32};
    for (const std::int64_t base : kBases) {
      expect_same_far_away(UpdateChunk(formats, odd_shapes()), base);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
