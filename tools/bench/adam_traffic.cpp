#include "tools/bench/adam_traffic.hpp"

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/traffic_streams.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/adam_traffic.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<std::uint32_t>;

// How far ahead the kernels prefetch, and for how many elements at once
// (kernels/host/optimizer/stage_simd.hpp).
constexpr std::int64_t kAheadElems = 64;
constexpr std::int64_t kLineElems = 16;
// The loop goes to the next array after this many elements: whole vectors of every format.
constexpr std::int64_t kTurnElems = 64;

// Passes the bytes of one turn of one stream, and prefetches the memory of a later turn.
HWY_INLINE void pass(const TrafficStream& stream, std::int64_t i, std::int64_t ahead,
                     hn::Vec<Words> mask, hn::Vec<Words>& fold) {
  const Words tag;
  const auto step = static_cast<std::int64_t>(hn::Lanes(tag));
  std::byte* const data = stream.at(i);
  const std::int64_t words = kTurnElems * stream.elem_bytes / 4;
  auto* const at = reinterpret_cast<std::uint32_t*>(data);
  if (stream.read && ahead != i) {
    const std::byte* const next = stream.at(ahead);
    for (std::int64_t k = 0; k < 4 * words; k += kLineElems * stream.elem_bytes) {
      hwy::Prefetch(next + k);
    }
  }
  if (!stream.read && reinterpret_cast<std::uintptr_t>(at) % 64 == 0) {
    for (std::int64_t k = 0; k < words; k += step) hn::Stream(fold, tag, at + k);
  } else if (!stream.read) {
    for (std::int64_t k = 0; k < words; k += step) hn::StoreU(fold, tag, at + k);
  } else if (!stream.write) {
    for (std::int64_t k = 0; k < words; k += step) fold = hn::Xor(fold, hn::LoadU(tag, at + k));
  } else {
    for (std::int64_t k = 0; k < words; k += step) {
      hn::StoreU(hn::Xor(hn::LoadU(tag, at + k), mask), tag, at + k);
    }
  }
  if (!stream.block8) return;
  if (i % static_cast<std::int64_t>(kBlock8Elems) != 0) return;
  const auto block = static_cast<std::uint64_t>(i) / kBlock8Elems;
  auto* const scale =
      reinterpret_cast<std::uint32_t*>(stream.data + kernels::block8_place(block).scale_bytes);
  *scale ^= hn::GetLane(mask);
}

void traffic_range(const TrafficStreams& streams, std::uint32_t mask, std::int64_t begin,
                   std::int64_t end) {
  const auto masks = hn::Set(Words(), mask);
  auto fold = masks;
  for (std::int64_t i = begin; i < end; i += kTurnElems) {
    const std::int64_t next = i + kAheadElems < end ? i + kAheadElems : i;
    for (std::size_t k = 0; k < streams.count; ++k) pass(streams.all[k], i, next, masks, fold);
  }
  hwy::FlushStream();
}

const char* target_name() {
  // Highway's AVX3 is Intel's AVX-512.
  const std::string_view name = hwy::TargetName(HWY_TARGET);
  return name.starts_with("AVX3") ? "AVX-512" : name.data();
}

}  // namespace sluice::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::bench {

HWY_EXPORT(traffic_range);
HWY_EXPORT(target_name);

void adam_traffic(const kernels::host::Parallel& parallel, const kernels::OptimizerOptions& options,
                  const kernels::UpdateBuffers& buffers, std::uint32_t mask) {
  SLUICE_CHECK(buffers.elems % static_cast<std::int64_t>(kBlock8GroupElems) == 0);
  const TrafficStreams streams = traffic_streams(options, buffers);
  parallel.for_blocks(buffers.elems,
                      kernels::host::update_task_elems(buffers.elems, parallel.threads()),
                      [&](std::int64_t begin, std::int64_t end) {
                        HWY_DYNAMIC_DISPATCH(traffic_range)(streams, mask, begin, end);
                      });
}

const char* vector_instruction_set() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace sluice::bench
#endif  // HWY_ONCE
