// Plans all moves first, then emits them as the generator passes by.
//
// The constructor numbers the visits and lists, for each value that may leave the device, the
// visits that touch it. plan_moves() looks at every gap between two touches. A value leaves if the
// gap is long enough: its copy is emitted one visit after its making, its device memory is free
// after the visit that used it last, and its fetch is emitted `prefetch` visits ahead. spill() and
// fetch() then emit the planned moves at their visits. Storage is reached through pieces in pinned
// memory.
#include "engine/schedule/compile/activation_stream.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {

// Bytes in a piece of activations for each element in a piece of state. With the size of fp32, the
// rings of both in pinned memory have the same size.
constexpr std::uint64_t kBytesPerPieceElem = 4;

}  // namespace

ActivationStream::ActivationStream(StepBuilder& builder, const std::vector<Pass>& passes,
                                   DeviceBuffer device, WaitingTier tier)
    : builder_(builder), device_(std::move(device)), tier_(std::move(tier)) {
  std::map<ActivationKey, Visits> uses;
  std::size_t visit = 0;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    const bool same =
        i > 0 && pass.unit == passes[i - 1].unit && pass.microbatch == passes[i - 1].microbatch;
    if (i > 0 && !same) ++visit;
    if (!same) first_pass_.push_back(i);
    visit_of_.push_back(visit);
    for (const ActivationKey& key : pass.touches) {
      if (tier_(key) == Tier::kDevice) continue;
      Visits& visits = uses[key];
      if (visits.empty() || visits.back().visit != visit) visits.push_back({visit, i});
    }
  }
  first_pass_.push_back(passes.size());
  sent_after_.resize(visit + 1);
  gone_after_.resize(visit + 1);
  brought_before_.resize(passes.size());
  for (const auto& [key, visits] : uses) plan_moves(key, visits);
  // The next visit reads outputs too, so the memory of each is released after that visit, and all
  // copies that follow it in the lane wait as well.
  for (std::vector<ActivationKey>& keys : sent_after_) {
    std::stable_partition(keys.begin(), keys.end(),
                          [](const ActivationKey& key) { return key.role == BufferRole::kSaved; });
  }
}

// Looks at each gap between two touches of one value. The first gap that is long enough causes the
// copy; later gaps only free the device memory again, since the copy stays valid.
void ActivationStream::plan_moves(const ActivationKey& key, const Visits& visits) {
  const auto ahead = static_cast<std::size_t>(builder_.options().prefetch);
  const std::size_t delay = std::min<std::size_t>(ahead, 1);
  const std::size_t sent = visits.front().visit + delay;
  bool is_sent = false;
  for (std::size_t i = 0; i + 1 < visits.size(); ++i) {
    // Device memory is freed when both the use and the copy are done. A move is worth while only if
    // the value is away for at least one visit.
    const std::size_t gone = std::max(visits[i].visit, sent);
    if (visits[i + 1].visit < gone + 2 + ahead) continue;
    if (!is_sent) sent_after_[sent].push_back(key);
    is_sent = true;
    gone_after_[gone].push_back(key);
    brought_before_[pass_that_brings(visits[i + 1])].push_back(key);
  }
}

// The pass before which a fetch starts: `prefetch` visits ahead of the use, and as near to that
// visit's end as the use is to the end of its own.
std::size_t ActivationStream::pass_that_brings(const Touch& use) const {
  const std::size_t visit = use.visit - static_cast<std::size_t>(builder_.options().prefetch);
  const std::size_t begin = first_pass_[visit];
  if (use.pass == first_pass_[use.visit]) return begin;
  const std::size_t to_end = first_pass_[use.visit + 1] - use.pass;
  const std::size_t end = first_pass_[visit + 1];
  return std::max(begin, end - std::min(end, to_end));
}

// Runs once at the begin of a visit, for the visit that has just ended.
void ActivationStream::spill(std::size_t index) {
  if (index == 0 || !begins_visit(index)) return;
  const std::size_t visit = visit_of_[index - 1];
  for (const ActivationKey& key : sent_after_[visit]) send(key);
  for (const ActivationKey& key : gone_after_[visit]) device_(key) = kNoId;
}

void ActivationStream::fetch(std::size_t index) {
  for (const ActivationKey& key : brought_before_[index]) bring(key);
}

// Copies a value to its waiting tier; the device buffer lives until its last use in list order.
void ActivationStream::send(const ActivationKey& key) {
  const BufferId from = device_(key);
  SLUICE_CHECK(from != kNoId);
  const std::uint64_t bytes = builder_.buffer(from).bytes;
  const Tier tier = tier_(key);
  const BufferId home = add_place(from, tier, bytes_of(from));
  away_[key] = home;
  if (tier == Tier::kStorage) return send_in_pieces(key, from);
  builder_.move(Op::kSpillActivation, Lane::kD2H, key.unit, key.microbatch, -1, {from, 0, bytes},
                {home, 0, bytes}, bytes);
}

// To storage through pieces in pinned memory.
void ActivationStream::send_in_pieces(const ActivationKey& key, BufferId from) {
  const BufferId home = away_.at(key);
  const std::vector<ElemRange> ranges = pieces(bytes_of(from));
  std::vector<BufferId> staged(ranges.size());
  pipeline_pieces(
      ranges.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        staged[i] = add_piece(from, Ring::kSpills, ranges[i]);
        builder_.move(Op::kSpillActivation, Lane::kD2H, key.unit, key.microbatch,
                      static_cast<std::int32_t>(i), part(from, ranges[i]),
                      part(staged[i], ranges[i]), ranges[i].elems());
      },
      [&](std::size_t i) {
        builder_.move(Op::kStorageWrite, Lane::kStorageWrite, key.unit, key.microbatch,
                      static_cast<std::int32_t>(i), part(staged[i], ranges[i]),
                      part(home, ranges[i]), ranges[i].elems());
      },
      [](std::size_t) {});
}

// Fetches a value into a new device buffer.
void ActivationStream::bring(const ActivationKey& key) {
  const BufferId home = away_.at(key);
  const std::uint64_t bytes = builder_.buffer(home).bytes;
  const BufferId to = add_place(home, Tier::kDevice, bytes_of(home));
  device_(key) = to;
  if (builder_.buffer(home).tier == Tier::kStorage) return bring_in_pieces(key, to);
  builder_.move(Op::kFetchActivation, Lane::kH2D, key.unit, key.microbatch, -1, {home, 0, bytes},
                {to, 0, bytes}, bytes);
}

// From storage through pieces in pinned memory.
void ActivationStream::bring_in_pieces(const ActivationKey& key, BufferId to) {
  const BufferId home = away_.at(key);
  const std::vector<ElemRange> ranges = pieces(bytes_of(to));
  std::vector<BufferId> staged(ranges.size());
  pipeline_pieces(
      ranges.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        staged[i] = add_piece(home, Ring::kFetches, ranges[i]);
        builder_.move(Op::kStorageRead, Lane::kStorageRead, key.unit, key.microbatch,
                      static_cast<std::int32_t>(i), part(home, ranges[i]),
                      part(staged[i], ranges[i]), ranges[i].elems());
      },
      [&](std::size_t i) {
        builder_.move(Op::kFetchActivation, Lane::kH2D, key.unit, key.microbatch,
                      static_cast<std::int32_t>(i), part(staged[i], ranges[i]), part(to, ranges[i]),
                      ranges[i].elems());
      },
      [](std::size_t) {});
}

// A buffer for a range of a value that lies in another tier. Its elements are bytes.
BufferId ActivationStream::add_place(BufferId value, Tier tier, ElemRange bytes) {
  const Buffer& of = builder_.buffer(value);
  Buffer buffer;
  buffer.role = of.role;
  buffer.tier = tier;
  buffer.category = Category::kActivation;
  buffer.dtype = DType::kU8;
  buffer.unit = of.unit;
  buffer.microbatch = of.microbatch;
  buffer.used_by = of.used_by;
  buffer.first_elem = bytes.begin;
  buffer.elems = bytes.elems();
  buffer.bytes = bytes.elems();
  return builder_.add_transient(std::move(buffer));
}

// A piece of it that a stream stages in pinned memory.
BufferId ActivationStream::add_piece(BufferId value, Ring ring, ElemRange bytes) {
  const BufferId id = add_place(value, Tier::kPinned, bytes);
  builder_.set_ring(id, ring);
  return id;
}

Use ActivationStream::part(BufferId id, ElemRange bytes) const {
  return {id, bytes.begin - builder_.buffer(id).first_elem, bytes.elems()};
}

// The bytes that a buffer holds; for saved values, within the unit's whole saved region.
ElemRange ActivationStream::bytes_of(BufferId id) const {
  const Buffer& buffer = builder_.buffer(id);
  return {buffer.first_elem, buffer.first_elem + buffer.bytes};
}

std::vector<ElemRange> ActivationStream::pieces(ElemRange bytes) const {
  const std::uint64_t most = builder_.options().piece_elems * kBytesPerPieceElem;
  std::vector<ElemRange> ranges;
  for (std::uint64_t begin = bytes.begin; begin < bytes.end; begin += most) {
    ranges.push_back({begin, std::min(begin + most, bytes.end)});
  }
  return ranges;
}

}  // namespace sluice::schedule
