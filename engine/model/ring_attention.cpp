// The parts between two hops (ring_attention.hpp has the outline). Keys and values of all heads lie
// in rows of their own, so that a hop is one contiguous value; the sums of their gradients lie
// alike.
#include "engine/model/ring_attention.hpp"

#include <algorithm>

namespace sluice::model {

RingAttention::Forward RingAttention::take_forward(Region& region) const {
  Forward room;
  room.kv_begin = region.used_bytes();
  room.kv = region.take(bytes(kv_cols(), own_.time, own_.dtype));
  room.out = reinterpret_cast<float*>(region.take(bytes(q_cols(), own_.time, DType::kF32)));
  return room;
}

RingAttention::Backward RingAttention::take_backward(Region& region) const {
  Backward room;
  room.kv_begin = region.used_bytes();
  room.kv = region.take(bytes(kv_cols(), own_.time, own_.dtype));
  room.dkv_begin = region.used_bytes();
  room.dkv = reinterpret_cast<float*>(region.take(bytes(kv_cols(), own_.time, DType::kF32)));
  room.dq = reinterpret_cast<float*>(region.take(bytes(q_cols(), own_.time, DType::kF32)));
  return room;
}

std::uint64_t RingAttention::scratch_bytes(const kernels::Kernels& kernels) const {
  std::uint64_t most = 0;
  for (std::int64_t hop = 0; hop < ranks_; ++hop) {
    most = std::max(most, kernels.attention_part_workspace_bytes(part_of(hop).shape));
  }
  return most;
}

std::vector<schedule::Cut> RingAttention::forward_cuts(const Forward& room,
                                                       schedule::PartMask parts) const {
  return {{schedule::CutKind::kRing, schedule::CutValue::kWorkspace, room.kv_begin,
           static_cast<std::uint64_t>(own_.time * kv_cols()), own_.dtype, parts,
           schedule::CutRanks::kContext}};
}

// A key's gradient goes the way of the key, a part later.
std::vector<schedule::Cut> RingAttention::backward_cuts(const Backward& room,
                                                        std::int64_t hop) const {
  std::vector<schedule::Cut> cuts;
  if (hop <= hops()) {
    Forward keys;
    keys.kv_begin = room.kv_begin;
    cuts = forward_cuts(keys, 0);
  }
  if (hop > 1) {
    cuts.push_back({schedule::CutKind::kRing, schedule::CutValue::kWorkspace, room.dkv_begin,
                    static_cast<std::uint64_t>(own_.time * kv_cols()), DType::kF32, 0,
                    schedule::CutRanks::kContext});
  }
  return cuts;
}

void RingAttention::rope(kernels::Kernels& kernels, float base, bool inverse,
                         std::byte* qkv) const {
  const std::int64_t chunk = own_.time / 2;
  kernels::AttentionShape shape = own_;
  shape.time = chunk;
  shape.first_position = rank_ * chunk;
  kernels.rope(shape, base, inverse, qkv);
  shape.first_position = (2 * ranks_ - 1 - rank_) * chunk;
  kernels.rope(shape, base, inverse, qkv + bytes(qkv_cols(), chunk, own_.dtype));
}

RingAttention::Part RingAttention::part_of(std::int64_t hop) const {
  const std::int64_t chunk = own_.time / 2;
  Part part;
  part.shape = {own_.time,     own_.time, own_.heads, own_.kv_heads,
                own_.head_dim, hop == 0,  own_.time,  own_.dtype};
  if (hop == 0) return part;
  const bool from_before = hop <= rank_;  // the keys are those of rank rank_ - hop
  if (from_before) {
    part.shape.keys = chunk;
  } else {
    part.shape.queries = chunk;
    part.first_query = chunk;
  }
  return part;
}

void RingAttention::copy_keys(kernels::Kernels& kernels, const std::byte* qkv,
                              std::byte* kv) const {
  kernels.copy_columns(qkv, {q_cols(), qkv_cols()}, kv, {0, kv_cols()}, own_.time, kv_cols(),
                       own_.dtype);
}

void RingAttention::forward(kernels::Kernels& kernels, std::int64_t hop, const std::byte* qkv,
                            const Forward& room, float* log_sum_exp, std::byte* out,
                            std::byte* scratch) const {
  if (hop == 0) copy_keys(kernels, qkv, room.kv);
  const Part part = part_of(hop);
  kernels.attention_part_forward(part.shape, qkv + bytes(qkv_cols(), part.first_query, own_.dtype),
                                 room.kv, hop == 0, room.out + part.first_query * q_cols(),
                                 log_sum_exp + part.first_query, scratch);
  if (hop < hops()) return;
  kernels.cast(room.out, DType::kF32, out, own_.dtype, false, own_.time * q_cols());
}

void RingAttention::start_backward(kernels::Kernels& kernels, const std::byte* qkv,
                                   const Backward& room) const {
  copy_keys(kernels, qkv, room.kv);
  kernels.zero(room.dkv, bytes(kv_cols(), own_.time, DType::kF32));
  kernels.zero(room.dq, bytes(q_cols(), own_.time, DType::kF32));
}

void RingAttention::backward(kernels::Kernels& kernels, std::int64_t hop,
                             const BackwardInputs& from, const Backward& room, std::byte* dqkv,
                             std::byte* scratch) const {
  const bool own = hop > hops();
  if (own) copy_keys(kernels, from.qkv, room.kv);
  const Part part = part_of(own ? 0 : hop);
  const std::uint64_t first = bytes(q_cols(), part.first_query, own_.dtype);
  kernels.attention_part_backward(part.shape, from.dout + first,
                                  from.qkv + bytes(qkv_cols(), part.first_query, own_.dtype),
                                  room.kv, from.out + first, from.log_sum_exp + part.first_query,
                                  room.dq + part.first_query * q_cols(), room.dkv, scratch);
  if (!own) return;
  // Keys and output gradients have been read. Their places hold the rounded gradients.
  kernels.cast(room.dq, DType::kF32, from.dout, own_.dtype, false, own_.time * q_cols());
  kernels.copy_columns(from.dout, {0, q_cols()}, dqkv, {0, qkv_cols()}, own_.time, q_cols(),
                       own_.dtype);
  kernels.cast(room.dkv, DType::kF32, room.kv, own_.dtype, false, own_.time * kv_cols());
  kernels.copy_columns(room.kv, {0, kv_cols()}, dqkv, {q_cols(), qkv_cols()}, own_.time, kv_cols(),
                       own_.dtype);
}

}  // namespace sluice::model
