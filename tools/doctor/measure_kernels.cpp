#include "tools/doctor/measure_kernels.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/optimizer.hpp"
#include "tools/doctor/aligned_bytes.hpp"
#include "tools/doctor/samples.hpp"

namespace sluice::doctor {
namespace {

using Axis = std::vector<std::int64_t>;

// Length of a row, for the elementwise kernels that work by rows.
constexpr std::int64_t kCols = 256;

// Hands out parts of one block, anew for every point.
class Arena {
 public:
  explicit Arena(std::uint64_t bytes) : data_(make_bytes(bytes)), bytes_(bytes) {}

  // Zeroes the used memory: a later point must not compute on an earlier one's results.
  void reset() {
    std::memset(data_.get(), 0, used_);
    used_ = 0;
  }
  std::byte* take(std::uint64_t bytes) {
    std::byte* const data = data_.get() + used_;
    used_ += round_up(std::max<std::uint64_t>(bytes, 1), kTensorAlignmentBytes);
    SLUICE_CHECK_MSG(used_ <= bytes_, "a kernel's buffers do not fit");
    return data;
  }
  std::byte* elems(std::int64_t count, DType dtype) {
    return take(static_cast<std::uint64_t>(count) * dtype_bytes(dtype));
  }
  float* floats(std::int64_t count) { return reinterpret_cast<float*>(elems(count, DType::kF32)); }
  // Words of a vocabulary, all as often.
  std::int32_t* words(std::int64_t count, std::int64_t vocab) {
    auto* const words = reinterpret_cast<std::int32_t*>(
        take(static_cast<std::uint64_t>(count) * sizeof(std::int32_t)));
    for (std::int64_t i = 0; i < count; ++i) words[i] = static_cast<std::int32_t>(i * 7 % vocab);
    return words;
  }

 private:
  AlignedBytes data_;
  std::uint64_t bytes_;
  std::uint64_t used_ = 0;
};

using Call = std::function<void()>;

struct Case {
  planner::TimedOperation operation;
  std::array<Axis, 3> axes;
  // Buffers from the arena, and the call to be timed.
  std::function<Call(const planner::OperationSize&, DType)> make;
};

// Builds the kernel calls to be timed. Their buffers start as zeros, and repeated calls never
// produce subnormal numbers, because arithmetic on subnormals is slow.
class Cases {
 public:
  Cases(kernels::Kernels& kernels, Arena& arena, std::uint64_t state_bytes)
      : kernels_(kernels), arena_(arena), state_bytes_(state_bytes) {}

  std::vector<Case> all() {
    const Axis rows{16, 64, 256, 1024};
    const Axis features{32, 128, 512, 2048};
    const Axis elems{1 << 10, 1 << 14, 1 << 18, 1 << 22};
    const Axis state{1 << 12, 1 << 16, 1 << 20};
    const Axis one{1};
    const auto by_elems = [&](planner::TimedOperation operation,
                              Call (Cases::*make)(std::int64_t, DType)) {
      return Case{operation,
                  {elems, one, one},
                  [this, make](const planner::OperationSize& size, DType dtype) {
                    return (this->*make)(size[0], dtype);
                  }};
    };
    const auto by_state = [&](planner::TimedOperation operation,
                              Call (Cases::*make)(std::int64_t, DType)) {
      Case made = by_elems(operation, make);
      made.axes[0] = state;
      return made;
    };
    const auto gemm_case = [&](planner::TimedOperation operation, std::array<Axis, 3> axes, bool a,
                               bool b) {
      return Case{operation, std::move(axes),
                  [this, a, b](const planner::OperationSize& size, DType dtype) {
                    return gemm(size, a, b, dtype);
                  }};
    };
    const auto attention_case = [&](planner::TimedOperation operation, bool forward) {
      return Case{operation,
                  {Axis{1, 4, 16}, Axis{32, 128, 512}, Axis{16, 64, 128}},
                  [this, forward](const planner::OperationSize& size, DType dtype) {
                    return attention(size, forward, dtype);
                  }};
    };
    const auto head_case = [&](planner::TimedOperation operation, bool forward) {
      return Case{operation,
                  {rows, Axis{256, 4096}, Axis{64, 256, 1024}},
                  [this, forward](const planner::OperationSize& size, DType dtype) {
                    return head(size, forward, dtype);
                  }};
    };
    using K = planner::TimedOperation;
    return {
        gemm_case(K::kGemmNN, {rows, features, features}, false, false),
        gemm_case(K::kGemmNT, {rows, features, features}, false, true),
        gemm_case(K::kGemmTN, {features, features, rows}, true, false),
        head_case(K::kHeadForward, true),
        head_case(K::kHeadBackward, false),
        attention_case(K::kAttentionForward, true),
        attention_case(K::kAttentionBackward, false),
        by_elems(K::kNormForward, &Cases::norm_forward),
        by_elems(K::kNormBackwardInput, &Cases::norm_backward_input),
        by_elems(K::kNormBackwardWeight, &Cases::norm_backward_weight),
        by_elems(K::kColumnSum, &Cases::column_sum),
        by_elems(K::kAdd, &Cases::add),
        by_elems(K::kGeluForward, &Cases::gelu_forward),
        by_elems(K::kGeluBackward, &Cases::gelu_backward),
        by_elems(K::kSwigluForward, &Cases::swiglu_forward),
        by_elems(K::kSwigluBackward, &Cases::swiglu_backward),
        by_elems(K::kRope, &Cases::rope),
        by_elems(K::kEmbeddingForward, &Cases::embedding_forward),
        by_elems(K::kEmbeddingBackward, &Cases::embedding_backward),
        by_state(K::kAccumulate, &Cases::accumulate),
        by_state(K::kSquaredNorm, &Cases::squared_norm),
        by_state(K::kAdamW, &Cases::adamw),
    };
  }

  // The operations that take most of a layer's forward pass.
  Call product(const planner::OperationSize& size, DType dtype) {
    return gemm(size, false, true, dtype);
  }

 private:
  // How many sets of operands a product takes turns with: a layer's weights and gradients have left
  // the nearer caches by the time it runs again.
  static std::size_t cool_sets(std::uint64_t bytes) {
    constexpr std::uint64_t kCoolBytes = 32 * kMiB;
    return std::clamp<std::uint64_t>(kCoolBytes / bytes, 1, 64);
  }

  Call gemm(const planner::OperationSize& size, bool transpose_a, bool transpose_b, DType dtype) {
    const auto [m, n, k] = size;
    const kernels::GemmShape shape{m, n, k, transpose_a, transpose_b, dtype, dtype};
    struct Operands {
      std::byte *a, *b, *c;
    };
    std::vector<Operands> sets(cool_sets((m * k + n * k + m * n) * dtype_bytes(dtype)));
    for (Operands& set : sets) {
      set = {arena_.elems(m * k, dtype), arena_.elems(n * k, dtype), arena_.elems(m * n, dtype)};
    }
    return [this, shape, sets, workspace = arena_.take(kernels_.gemm_workspace_bytes(shape)),
            next = std::size_t{0}]() mutable {
      const Operands& set = sets[next++ % sets.size()];
      kernels_.gemm(shape, set.a, set.b, nullptr, set.c, workspace);
    };
  }
  Call head(const planner::OperationSize& size, bool forward, DType dtype) {
    const auto [rows, vocab, hidden] = size;
    const kernels::HeadShape shape{rows, hidden, vocab, dtype};
    return
        [this, shape, forward, x = arena_.elems(rows * hidden, dtype),
         dx = arena_.elems(rows * hidden, dtype), w = arena_.elems(vocab * hidden, dtype),
         dw = arena_.elems(vocab * hidden, dtype), targets = arena_.words(rows, vocab),
         lse = arena_.floats(rows), workspace = arena_.take(kernels_.head_workspace_bytes(shape))] {
          double loss = 0;
          if (forward) {
            kernels_.head_forward(shape, x, w, targets, 1.0f, &loss, lse, dx, workspace);
          } else {
            kernels_.head_backward_weight(shape, x, w, targets, 1.0f, lse, dw, workspace);
          }
        };
  }
  Call attention(const planner::OperationSize& size, bool forward, DType dtype) {
    const auto [heads, time, head_dim] = size;
    const kernels::AttentionShape shape{1, time, heads, heads, head_dim, dtype};
    const std::int64_t elems = heads * time * head_dim;
    return [this, shape, forward, qkv = arena_.elems(3 * elems, dtype),
            dqkv = arena_.elems(3 * elems, dtype), out = arena_.elems(elems, dtype),
            dout = arena_.elems(elems, dtype), lse = arena_.floats(heads * time),
            workspace = arena_.take(kernels_.attention_workspace_bytes(shape))] {
      if (forward) {
        kernels_.attention_forward(shape, qkv, out, lse, workspace);
      } else {
        kernels_.attention_backward(shape, dout, qkv, out, lse, dqkv, workspace);
      }
    };
  }

  struct NormBuffers {
    kernels::NormShape shape;
    std::byte *x, *dy, *residual, *out, *weight, *dweight;
    float *mean, *rstd;
  };
  NormBuffers norm_buffers(std::int64_t elems, DType dtype) {
    const std::int64_t rows = elems / kCols;
    return {
        {rows, kCols, true, 1e-5f, dtype}, arena_.elems(elems, dtype), arena_.elems(elems, dtype),
        arena_.elems(elems, dtype),        arena_.elems(elems, dtype), arena_.elems(kCols, dtype),
        arena_.elems(kCols, dtype),        arena_.floats(rows),        arena_.floats(rows)};
  }
  Call norm_forward(std::int64_t elems, DType dtype) {
    return [this, at = norm_buffers(elems, dtype)] {
      kernels_.norm_forward(at.shape, at.x, at.weight, nullptr, at.out, at.mean, at.rstd);
    };
  }
  Call norm_backward_input(std::int64_t elems, DType dtype) {
    return [this, at = norm_buffers(elems, dtype)] {
      kernels_.norm_backward_input(at.shape, at.dy, at.x, at.weight, at.mean, at.rstd, at.residual,
                                   at.out);
    };
  }
  Call norm_backward_weight(std::int64_t elems, DType dtype) {
    return [this, at = norm_buffers(elems, dtype)] {
      kernels_.norm_backward_weight(at.shape, at.dy, at.x, at.mean, at.rstd, at.dweight, nullptr);
    };
  }

  Call column_sum(std::int64_t elems, DType dtype) {
    return [this, elems, dtype, x = arena_.elems(elems, dtype), out = arena_.elems(kCols, dtype)] {
      kernels_.column_sum(x, out, elems / kCols, kCols, dtype);
    };
  }
  Call add(std::int64_t elems, DType dtype) {
    return [this, elems, dtype, a = arena_.elems(elems, dtype), b = arena_.elems(elems, dtype),
            out = arena_.elems(elems, dtype)] { kernels_.add(a, b, out, elems, dtype); };
  }
  Call gelu_forward(std::int64_t elems, DType dtype) {
    return [this, elems, dtype, x = arena_.elems(elems, dtype), y = arena_.elems(elems, dtype)] {
      kernels_.gelu_forward(x, y, elems, dtype);
    };
  }
  Call gelu_backward(std::int64_t elems, DType dtype) {
    return [this, elems, dtype, dy = arena_.elems(elems, dtype), x = arena_.elems(elems, dtype),
            dx = arena_.elems(elems, dtype)] { kernels_.gelu_backward(dy, x, dx, elems, dtype); };
  }
  Call swiglu_forward(std::int64_t elems, DType dtype) {
    return
        [this, elems, dtype, x = arena_.elems(2 * elems, dtype), y = arena_.elems(elems, dtype)] {
          kernels_.swiglu_forward(x, y, elems / kCols, kCols, dtype);
        };
  }
  Call swiglu_backward(std::int64_t elems, DType dtype) {
    return [this, elems, dtype, dy = arena_.elems(elems, dtype), x = arena_.elems(2 * elems, dtype),
            dx = arena_.elems(2 * elems, dtype)] {
      kernels_.swiglu_backward(dy, x, dx, elems / kCols, kCols, dtype);
    };
  }
  // Two heads of 64 with a key/value head for each: 256 elements a row are turned, of 384.
  Call rope(std::int64_t elems, DType dtype) {
    const std::int64_t rows = elems / kCols;
    const kernels::AttentionShape shape{1, rows, 2, 2, 64, dtype};
    return [this, shape, qkv = arena_.elems(rows * 384, dtype)] {
      kernels_.rope(shape, 1e4f, false, qkv);
    };
  }
  Call embedding_forward(std::int64_t elems, DType dtype) {
    const std::int64_t rows = elems / kCols;
    return [this, rows, dtype, words = arena_.words(rows, kCols),
            table = arena_.elems(kCols * kCols, dtype), out = arena_.elems(elems, dtype)] {
      kernels_.embedding_forward(words, kernels::all_tokens(kCols), table, nullptr, out, rows, rows,
                                 kCols, dtype);
    };
  }
  // As many rows as words in the table.
  Call embedding_backward(std::int64_t elems, DType dtype) {
    const std::int64_t rows = elems / kCols / 2;
    return [this, rows, dtype, words = arena_.words(rows, rows),
            dout = arena_.elems(rows * kCols, dtype), dtable = arena_.elems(rows * kCols, dtype),
            workspace = arena_.take(kernels_.embedding_backward_workspace_bytes(rows, rows))] {
      kernels_.embedding_backward(words, kernels::all_tokens(rows), dout, dtable, nullptr, rows,
                                  rows, rows, kCols, dtype, workspace);
    };
  }

  // Starts of pieces of `elems` elements, one after another through the state's memory.
  class Walk {
   public:
    Walk(std::uint64_t bytes, std::uint64_t elem_bytes, std::int64_t elems)
        : elems_(elems),
          pieces_(std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / elem_bytes) /
                                                std::max<std::int64_t>(elems, 1))) {}
    std::int64_t total() const { return pieces_ * elems_; }
    std::int64_t next() {
      piece_ = (piece_ + 1) % pieces_;
      return piece_ * elems_;
    }

   private:
    std::int64_t elems_;
    std::int64_t pieces_;
    std::int64_t piece_ = 0;
  };

  Call accumulate(std::int64_t elems, DType dtype) {
    Walk walk(state_bytes_, sizeof(float) + dtype_bytes(dtype), elems);
    return [this, elems, dtype, sum = arena_.floats(walk.total()),
            grad = arena_.elems(walk.total(), dtype), walk]() mutable {
      const std::int64_t at = walk.next();
      kernels_.accumulate(sum + at, grad + at * static_cast<std::int64_t>(dtype_bytes(dtype)),
                          dtype, false, elems);
    };
  }
  Call squared_norm(std::int64_t elems, DType dtype) {
    Walk walk(state_bytes_, dtype_bytes(dtype), elems);
    constexpr std::int64_t kBlock = kLawBlockElems;
    std::vector<kernels::Kernels::Block> blocks;
    for (std::int64_t begin = 0; begin < elems; begin += kBlock) {
      blocks.push_back({begin, std::min(elems, begin + kBlock)});
    }
    return [this, dtype, grad = arena_.elems(walk.total(), dtype),
            partial = reinterpret_cast<double*>(arena_.take(blocks.size() * sizeof(double))),
            blocks, walk]() mutable {
      kernels_.squared_norm_blocks(
          grad + walk.next() * static_cast<std::int64_t>(dtype_bytes(dtype)), dtype, DType::kF32,
          blocks, partial);
    };
  }
  Call adamw(std::int64_t elems, DType dtype) {
    Walk walk(state_bytes_, 12 + 2 * dtype_bytes(dtype), elems);
    const bool has_master = dtype != DType::kF32;
    std::byte* const grad = arena_.elems(walk.total(), dtype);
    std::byte* const weight = has_master ? arena_.elems(walk.total(), dtype) : nullptr;
    float* const master = arena_.floats(walk.total());
    float* const moment1 = arena_.floats(walk.total());
    float* const moment2 = arena_.floats(walk.total());
    return [=, this]() mutable {
      const std::int64_t at = walk.next();
      const std::int64_t offset = at * static_cast<std::int64_t>(dtype_bytes(dtype));
      kernels::UpdateBuffers buffers;
      buffers.grad = grad + offset;
      buffers.grad_dtype = dtype;
      buffers.master = has_master ? master + at : nullptr;
      buffers.moment1 = moment1 + at;
      buffers.moment2 = moment2 + at;
      buffers.weight = has_master ? weight + offset : static_cast<void*>(master + at);
      buffers.elems = elems;
      const kernels::ParameterSegment all{0, elems, 0.1f};
      kernels_.update({.weight = dtype}, buffers, {&all, 1}, {.lr = 1e-3f}, nullptr);
    };
  }

  kernels::Kernels& kernels_;
  Arena& arena_;
  std::uint64_t state_bytes_;
};

// The median call: a moment's disturbance does not count.
double call_seconds(const Call& call, double least_seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kLeastCalls = 3;
  constexpr double kLong = 4;  // so many times the least: the first call says enough
  Samples times;
  double total = 0;
  while (times.count() < kLeastCalls || total < least_seconds) {
    const auto begin = Clock::now();
    call();
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    if (times.count() == 0 && taken > kLong * least_seconds) return taken;
    times.add(std::max(taken, 1e-9));
    total += taken;
  }
  return times.median();
}

}  // namespace

struct KernelTrial::State {
  struct Grid {
    const Case* measured;
    DType dtype;
    std::vector<Samples> seconds;  // by point, the last axis fastest
  };

  explicit State(const KernelOptions& chosen)
      : options(chosen),
        // In addition to the state, the largest elementwise kernel: 5 arrays of 4 Mi fp32.
        arena(chosen.state_bytes + 128 * kMiB),
        maker(*chosen.all, arena, chosen.state_bytes),
        cases(maker.all()) {
    SLUICE_CHECK(options.points_each_axis > 0);
    for (Case& each : cases) {
      std::size_t points = 1;
      for (Axis& axis : each.axes) {
        axis.resize(std::min(axis.size(), options.points_each_axis));
        points *= axis.size();
      }
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        grids.push_back({&each, dtype, std::vector<Samples>(points)});
      }
    }
  }

  // How much faster a product is on all cores, the two measured side by side.
  void measure_scaling() {
    constexpr planner::OperationSize kProduct{256, 512, 512};
    constexpr double kSeconds = 0.02;
    const auto seconds_on = [&](kernels::Kernels& kernels) {
      arena.reset();
      return call_seconds(Cases(kernels, arena, options.state_bytes).product(kProduct, DType::kF32),
                          kSeconds);
    };
    const double one = seconds_on(*options.one_core);
    speedup.add(one / seconds_on(*options.all));
  }

  const KernelOptions options;
  Arena arena;
  Cases maker;
  std::vector<Case> cases;
  std::vector<Grid> grids;
  Samples speedup;
};

KernelTrial::KernelTrial(const KernelOptions& options) {
  SLUICE_CHECK(options.all != nullptr && options.one_core != nullptr);
  state_ = std::make_unique<State>(options);
}

KernelTrial::~KernelTrial() = default;

void KernelTrial::measure_round() {
  for (State::Grid& grid : state_->grids) {
    const Case& measured = *grid.measured;
    std::size_t point = 0;
    for (const std::int64_t first : measured.axes[0]) {
      for (const std::int64_t second : measured.axes[1]) {
        for (const std::int64_t third : measured.axes[2]) {
          state_->arena.reset();
          const Call call = measured.make({first, second, third}, grid.dtype);
          grid.seconds[point++].add(call_seconds(call, state_->options.seconds_each));
        }
      }
    }
  }
  state_->measure_scaling();
}

void KernelTrial::save(planner::HardwareProfile& profile) const {
  if (profile.cores > 1) {
    profile.core_scaling =
        std::clamp((state_->speedup.median() - 1) / (profile.cores - 1), 0.01, 1.0);
  }
  constexpr planner::OperationSize kLargeProduct{512, 1024, 1024};
  constexpr std::int64_t kPiece = 1 << 20;
  for (const State::Grid& measured : state_->grids) {
    planner::OperationGrid grid{
        measured.measured->operation, measured.dtype, measured.measured->axes, {}};
    for (const Samples& seconds : measured.seconds) grid.seconds.push_back(seconds.median());
    // The rates for people; they also price operations without a grid.
    if (grid.operation == planner::TimedOperation::kGemmNT) {
      const double rate = 2.0 * 512 * 1024 * 1024 / grid.seconds_at(kLargeProduct);
      (grid.dtype == DType::kF32 ? profile.gemm_f32_flops_per_s : profile.gemm_bf16_flops_per_s) =
          rate;
    }
    if (grid.operation == planner::TimedOperation::kAdamW && grid.dtype == DType::kBF16) {
      profile.adam_params_per_s = static_cast<double>(kPiece) / grid.seconds_at({kPiece, 1, 1});
    }
    profile.operations.push_back(std::move(grid));
  }
}

}  // namespace sluice::doctor
