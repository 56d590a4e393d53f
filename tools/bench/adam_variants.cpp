#include "tools/bench/adam_variants.hpp"

#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_traffic.hpp"

namespace sluice::bench {
namespace {

kernels::OptimizerOptions formats(kernels::OptimizerRule rule, DType weight, bool split,
                                  DType moments) {
  kernels::OptimizerOptions options;
  options.rule = rule;
  options.weight = weight;
  options.split_master = split;
  options.moments = moments;
  return options;
}

template <class Run>
double seconds_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A hash spread over [-1, 1): the values only have to vary.
float value_of(std::int64_t i) {
  const auto mixed = static_cast<std::uint32_t>(i) * 2654435761u;
  return static_cast<float>(static_cast<std::int32_t>(mixed)) * 0x1p-31f;
}

void put(std::byte* array, DType dtype, std::int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(array + 4 * i, &value, 4);
  } else if (dtype == DType::kBF16) {
    const bf16 rounded = bf16_from_float(value);
    std::memcpy(array + 2 * i, &rounded, 2);
  }  // remainders stay zero: the master is the weight
}

void run_rule(const kernels::host::Parallel& parallel, const kernels::OptimizerOptions& options,
              const kernels::UpdateBuffers& buffers, const kernels::ParameterSegment& segment,
              const kernels::UpdateScalars& scalars) {
  switch (options.rule) {
    case kernels::OptimizerRule::kAdam:
      return kernels::host::adam(parallel, options, buffers, {&segment, 1}, scalars);
    case kernels::OptimizerRule::kSgd:
      return kernels::host::sgd(parallel, options, buffers, {&segment, 1}, scalars);
    case kernels::OptimizerRule::kLion:
      return kernels::host::lion(parallel, options, buffers, {&segment, 1}, scalars);
    default:
      return kernels::host::adamw(parallel, options, buffers, {&segment, 1}, scalars);
  }
}

}  // namespace

std::span<const AdamVariant> adam_variants() {
  using enum DType;
  constexpr auto kAdamW = kernels::OptimizerRule::kAdamW;
  static const std::array<AdamVariant, 10> variants{{
      {"f32", "AdamW, f32 -> f32, f32 moments", formats(kAdamW, kF32, false, kF32), kF32},
      {"bf16", "AdamW, bf16 -> bf16, f32 master and moments", formats(kAdamW, kBF16, false, kF32)},
      {"f32_rounded", "AdamW, f32 sum rounded -> bf16, f32 master and moments",
       formats(kAdamW, kBF16, false, kF32), kF32, kBF16},
      {"split", "AdamW, bf16 -> bf16, split master, f32 moments",
       formats(kAdamW, kBF16, true, kF32)},
      {"split_bf16", "AdamW, bf16 -> bf16, split master, bf16 moments",
       formats(kAdamW, kBF16, true, kBF16)},
      {"split_block8", "AdamW, bf16 -> bf16, split master, 8-bit moments",
       formats(kAdamW, kBF16, true, kBlock8)},
      {"block8", "AdamW, bf16 -> bf16, f32 master, 8-bit moments",
       formats(kAdamW, kBF16, false, kBlock8)},
      {"adam", "Adam, bf16 -> bf16, f32 master and moments",
       formats(kernels::OptimizerRule::kAdam, kBF16, false, kF32)},
      {"sgd", "SGD, bf16 -> bf16, f32 master and momentum",
       formats(kernels::OptimizerRule::kSgd, kBF16, false, kF32)},
      {"lion", "Lion, bf16 -> bf16, f32 master and moment",
       formats(kernels::OptimizerRule::kLion, kBF16, false, kF32)},
  }};
  return variants;
}

void AdamVariantStep::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

AdamVariantStep::Array AdamVariantStep::array(DType dtype) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t bytes =
      (bytes_of(dtype, static_cast<std::uint64_t>(elems_)) + kHugePage - 1) / kHugePage * kHugePage;
  Array memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  // Best effort: with small pages, both sides of the ratio are measured on small pages.
  static_cast<void>(madvise(memory.get(), bytes, MADV_HUGEPAGE));
  parallel_.for_blocks(
      elems_, kernels::host::kUpdatePieceElems, [&](std::int64_t begin, std::int64_t end) {
        const std::uint64_t from = bytes_of(dtype, static_cast<std::uint64_t>(begin));
        std::memset(memory.get() + from, 0,
                    bytes_of(dtype, static_cast<std::uint64_t>(end - begin)));
      });
  return memory;
}

AdamVariantStep::AdamVariantStep(const kernels::host::Parallel& parallel,
                                 const AdamVariant& variant, std::int64_t elems)
    : parallel_(parallel), variant_(variant), elems_(elems) {
  const kernels::OptimizerOptions& options = variant.options;
  grad_ = array(variant.grad);
  weight_ = array(options.weight);
  const auto state = [&](StateKind kind) {
    const kernels::StateLayout layout = kernels::state_layout(options, kind);
    return layout.extent == kernels::StateExtent::kAbsent ? Array() : array(layout.dtype);
  };
  master_ = state(StateKind::kMaster);
  moment1_ = state(StateKind::kMoment1);
  moment2_ = state(StateKind::kMoment2);
  const DType master = kernels::state_layout(options, StateKind::kMaster).dtype;
  parallel.for_blocks(elems, kernels::host::kUpdatePieceElems,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          put(grad_.get(), variant_.grad, i, value_of(i) * 1e-2f);
                          put(weight_.get(), options.weight, i, value_of(i));
                          if (master_ != nullptr) put(master_.get(), master, i, value_of(i));
                        }
                      });
  buffers_.grad = grad_.get();
  buffers_.grad_dtype = variant.grad;
  buffers_.round_grad_to = variant.round_grad_to;
  buffers_.weight = weight_.get();
  buffers_.master = master_.get();
  buffers_.moment1 = moment1_.get();
  buffers_.moment2 = moment2_.get();
  buffers_.elems = elems;
  scalars_.lr = 1e-4f;
}

double AdamVariantStep::update_seconds() {
  const kernels::ParameterSegment segment{0, elems_, 0.1f};
  const double seconds =
      seconds_of([&] { run_rule(parallel_, variant_.options, buffers_, segment, scalars_); });
  ++scalars_.step;
  return seconds;
}

double AdamVariantStep::traffic_seconds() {
  return seconds_of([&] { adam_traffic(parallel_, variant_.options, buffers_, 0); });
}

double AdamVariantStep::bytes_per_param() const {
  return kernels::update_bytes_per_elem(variant_.options, variant_.grad);
}

}  // namespace sluice::bench
