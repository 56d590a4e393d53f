// Makes allocation traces of GPU training, as an eager framework would cause them, from a seed.
// They serve replays when no recording is at hand. Sizes follow from a transformer's shape, and
// lifetimes from the tensors that its operations save, gather and free. A pure function of its
// options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/record/memory_trace.hpp"

namespace sluice::replay {

// A field of 0 is drawn from the seed, or computed so that the trace peaks between 5 and 60 GiB.
struct GeneratorOptions {
  std::string family = "dense";
  std::uint64_t seed = 0;
  std::uint32_t iterations = 6;     // 1..1,000
  std::uint32_t micro_batches = 0;  // forward and backward passes in an iteration, 1..256
  std::uint32_t layers = 0;         // 1..256
  std::uint32_t hidden = 0;         // 64..65,536; a multiple of heads
  std::uint32_t heads = 0;          // 1..512; if drawn, the head size is 128
  std::uint32_t kv_heads = 0;       // divides heads; equal to them for multi-head attention
  std::uint32_t ffn = 0;            // inner size of the MLP, 64..262,144
  std::uint32_t vocab = 0;          // 64..1,048,576
  std::uint32_t sequence = 0;       // tokens, 16..1,048,576
  std::uint32_t micro_batch = 0;    // sequences, 1..4,096
  std::uint32_t ranks = 0;          // data-parallel, or expert-parallel, 1..65,536
  std::uint32_t log_every = 4;      // iterations between a few extra small allocations; 0 for never
};

// The families:
//   dense  states on the device, gradient accumulation; with or without DDP's buckets and
//          autocast's copies
//   zero3  weights are gathered per unit on a communication stream (1), prefetched, and freed
//          after use; gradients are reduce-scattered; the optimizer is offloaded over a copy
//          stream (2), or sharded
//   moe    experts; their token counts change in each layer, micro-batch and iteration
// The first iteration differs: it has workspaces and a warm-up, and makes the optimizer's states.
std::vector<std::string> generator_families();

// The trace has the format "generated", a kStep before each iteration, and addresses of 0. Stream 0
// is the compute stream. InputError for an unknown family or a value out of bounds, with the right
// form.
record::MemoryTrace generate_trace(const GeneratorOptions& options);

}  // namespace sluice::replay
