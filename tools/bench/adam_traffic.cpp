#include "tools/bench/adam_traffic.hpp"

#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/adam_traffic.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<std::uint32_t>;
using Halves = hn::Rebind<std::uint16_t, Words>;

HWY_INLINE void pass_words(float* array, std::int64_t i, hn::Vec<Words> mask) {
  const Words words;
  auto* const at = reinterpret_cast<std::uint32_t*>(array + i);
  hn::StoreU(hn::Xor(hn::LoadU(words, at), mask), words, at);
}

// [begin, end) in whole vectors; the bench's sizes leave no remainder.
void traffic_range(const UpdateBuffers& buffers, std::uint32_t mask, std::int64_t begin,
                   std::int64_t end) {
  const Words words;
  const Halves halves;
  const auto word_mask = hn::Set(words, mask);
  const auto step = static_cast<std::int64_t>(hn::Lanes(words));
  auto* const weight = static_cast<std::uint16_t*>(buffers.weight);
  for (std::int64_t i = begin; i + step <= end; i += step) {
    if (buffers.grad_dtype == DType::kBF16) {
      const auto grad = hn::LoadU(halves, static_cast<const std::uint16_t*>(buffers.grad) + i);
      hn::StoreU(hn::Xor(grad, hn::Set(halves, static_cast<std::uint16_t>(mask))), halves,
                 weight + i);
    } else {
      const auto grad = hn::LoadU(words, static_cast<const std::uint32_t*>(buffers.grad) + i);
      const auto upper = hn::ShiftRight<16>(hn::Xor(grad, word_mask));
      hn::StoreU(hn::DemoteTo(halves, hn::BitCast(hn::RebindToSigned<Words>(), upper)), halves,
                 weight + i);
    }
    pass_words(static_cast<float*>(buffers.master), i, word_mask);
    pass_words(static_cast<float*>(buffers.moment1), i, word_mask);
    pass_words(static_cast<float*>(buffers.moment2), i, word_mask);
  }
}

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(traffic_range);
HWY_EXPORT(target_name);

void adam_traffic(const host::Parallel& parallel, const UpdateBuffers& buffers,
                  std::uint32_t mask) {
  parallel.for_blocks(buffers.elems, host::kUpdatePieceElems,
                      [&](std::int64_t begin, std::int64_t end) {
                        HWY_DYNAMIC_DISPATCH(traffic_range)(buffers, mask, begin, end);
                      });
}

const char* vector_instruction_set() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace sluice
#endif  // HWY_ONCE
