// Elements with numbers and byte offsets of more than 31 or 32 bits. Only that part of the large
// arrays exists. Its update is bit for bit the update at the beginning of small arrays.
#include <array>
#include <utility>

#include "tests/kernels/optimizer/sparse_memory.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"
#include "tests/kernels/optimizer/update_state.hpp"

namespace sluice::kernels::host {
namespace {

// The same elements at the beginning of small arrays, and at element `base` of large ones.
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

UpdateScalars scalars_at(std::int64_t step) {
  UpdateScalars scalars;
  scalars.lr = 1e-2f;
  scalars.grad_scale = 0.731f;
  scalars.step = step;
  return scalars;
}

void expect_same_far_away(const UpdateFormats& formats) {
  constexpr std::int64_t kElems = 3 * 4096;
  const std::vector<ParameterSegment> segments{
      {.begin = 0, .end = 777, .weight_decay = 0.1f, .first_key = (1ull << 33) + 5},
      {.begin = 1024, .end = kElems - 33, .lr_scale = 0.5f, .first_key = 1ull << 32}};
  for (const std::int64_t base : kBases) {
    UpdateState near(formats, kElems);
    const std::vector<float> numbers = normal_floats(kElems, 3), moment = normal_floats(kElems, 4);
    std::vector<float> square;
    for (const float m : moment) square.push_back(m * m);
    for (std::int64_t i = 0; i < kElems; ++i) {
      near.set_number(i, numbers[static_cast<std::size_t>(i)]);
    }
    near.set_moment(1, moment, [](std::int64_t) { return std::uint16_t{0}; });
    near.set_moment(2, square, [](std::int64_t) { return std::uint16_t{0}; });
    const DTypeArray grad(formats.grad, normal_floats(kElems, 5));
    const UpdateBuffers buffers = near.buffers(grad);
    const FarCopy far(formats.options, buffers, base, 0);
    ASSERT_TRUE(far.whole());
    EXPECT_TRUE(far.equal());
    const UpdateState before = near;
    run_update(Parallel(2), formats, buffers, segments, scalars_at(7));
    EXPECT_FALSE(near == before);
    EXPECT_FALSE(far.equal());
    run_update(Parallel(2), formats, far.buffers(), far.segments(segments), scalars_at(7));
    EXPECT_TRUE(far.equal()) << format_name(formats) << " from element " << base;
  }
}

TEST(FarUpdate, ElementwiseRulesInEveryFormat) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd, OptimizerRule::kLion}) {
    for (const DType moments : {DType::kF32, DType::kBF16, DType::kBlock8}) {
      for (const auto& [weight, split] :
           {std::pair(DType::kF32, false), std::pair(DType::kBF16, false),
            std::pair(DType::kBF16, true), std::pair(DType::kF16, false)}) {
        UpdateFormats formats;
        formats.options.rule = rule;
        formats.options.weight = weight;
        formats.options.split_master = split;
        formats.options.moments = moments;
        formats.options.seed = 11;
        formats.grad = weight == DType::kF32 ? DType::kF32 : weight;
        expect_same_far_away(formats);
      }
    }
  }
}

TEST(FarUpdate, RulesOfWholeTensors) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdafactor, OptimizerRule::kSm3, OptimizerRule::kMuon}) {
    for (const std::int64_t base : kBases) {
      OptimizerOptions options;
      options.rule = rule;
      options.weight = DType::kBF16;
      TensorChunk near(options, DType::kBF16, DType::kF32, odd_shapes(), 3);
      near.set_grad(normal_floats(near.elems, 5, 1e-2f));
      std::uint64_t statistics = 0;
      for (const ParameterSegment& segment : near.segments) {
        statistics =
            segment.moment2_begin + state_elems(options, StateKind::kMoment2, segment.tensor);
      }
      const FarCopy far(options, near.buffers(), base, statistics);
      ASSERT_TRUE(far.whole());
      const Parallel parallel(2);
      const Gemm gemm(parallel, Bf16Gemm::kViaF32);
      near.update(parallel, scalars_at(7));
      EXPECT_FALSE(far.equal());
      const std::vector<ParameterSegment> segments = far.segments(near.segments);
      GuardedWorkspace workspace(update_workspace_bytes(gemm, options, segments));
      update(parallel, gemm, options, far.buffers(), segments, scalars_at(7), workspace.data());
      EXPECT_TRUE(far.equal()) << optimizer_rule_name(rule) << " from element " << base;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
