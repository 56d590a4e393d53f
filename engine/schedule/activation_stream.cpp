#include "engine/schedule/activation_stream.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule/pipeline_pieces.hpp"

namespace sluice {
namespace {

// What a piece of activations has for each element that a piece of state has: as many bytes as
// fp32, so that their rings in pinned memory are of one size.
constexpr std::uint64_t kBytesPerPieceElem = 4;

}  // namespace

ActivationStream::ActivationStream(StepBuilder& builder, const std::vector<Pass>& passes,
                                   DeviceBuffer device)
    : builder_(builder), device_(std::move(device)) {
  std::map<ActivationKey, Visits> uses;
  std::size_t visit = 0;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    const bool same =
        i > 0 && pass.unit == passes[i - 1].unit && pass.microbatch == passes[i - 1].microbatch;
    if (i > 0 && !same) ++visit;
    visit_of_.push_back(visit);
    for (const ActivationKey& key : pass.touches) {
      if (builder.options().placement.activation_of(key.unit) == Tier::kDevice) continue;
      Visits& visits = uses[key];
      if (visits.empty() || visits.back() != visit) visits.push_back(visit);
    }
  }
  sent_after_.resize(visit + 1);
  gone_after_.resize(visit + 1);
  brought_before_.resize(visit + 1);
  for (const auto& [key, visits] : uses) plan_moves(key, visits);
}

void ActivationStream::plan_moves(const ActivationKey& key, const Visits& visits) {
  const auto ahead = static_cast<std::size_t>(builder_.options().prefetch);
  const std::size_t behind = std::min<std::size_t>(ahead, 1);
  const std::size_t sent = visits.front() + behind;
  bool is_sent = false;
  for (std::size_t i = 0; i + 1 < visits.size(); ++i) {
    // It lives until both its use and its copy are done; away for at least one visit, or not.
    const std::size_t gone = std::max(visits[i], sent);
    if (visits[i + 1] < gone + 2 + ahead) continue;
    if (!is_sent) sent_after_[sent].push_back(key);
    is_sent = true;
    gone_after_[gone].push_back(key);
    brought_before_[visits[i + 1] - ahead].push_back(key);
  }
}

void ActivationStream::spill(std::size_t index) {
  if (index == 0 || !begins_visit(index)) return;
  const std::size_t visit = visit_of_[index - 1];
  for (const ActivationKey& key : sent_after_[visit]) send(key);
  for (const ActivationKey& key : gone_after_[visit]) device_(key) = kNoId;
}

void ActivationStream::fetch(std::size_t index) {
  if (!begins_visit(index)) return;
  for (const ActivationKey& key : brought_before_[visit_of_[index]]) bring(key);
}

void ActivationStream::send(const ActivationKey& key) {
  const BufferId from = device_(key);
  SLUICE_CHECK(from != kNoId);
  const std::uint64_t bytes = builder_.buffer(from).bytes;
  const Tier tier = builder_.options().placement.activation_of(key.unit);
  const BufferId home = add_place(key, tier, {0, bytes});
  away_[key] = home;
  if (tier == Tier::kStorage) return send_in_pieces(key, from);
  builder_.move(Op::kSpillActivation, Lane::kD2H, key.unit, key.microbatch, -1, {from, 0, bytes},
                {home, 0, bytes}, bytes);
}

void ActivationStream::send_in_pieces(const ActivationKey& key, BufferId from) {
  const BufferId home = away_.at(key);
  const std::vector<ElemRange> ranges = pieces(builder_.buffer(from).bytes);
  std::vector<BufferId> staged(ranges.size());
  pipeline_pieces(
      ranges.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        staged[i] = add_place(key, Tier::kPinned, ranges[i]);
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

void ActivationStream::bring(const ActivationKey& key) {
  const BufferId home = away_.at(key);
  const std::uint64_t bytes = builder_.buffer(home).bytes;
  const BufferId to = add_place(key, Tier::kDevice, {0, bytes});
  device_(key) = to;
  if (builder_.buffer(home).tier == Tier::kStorage) return bring_in_pieces(key, to);
  builder_.move(Op::kFetchActivation, Lane::kH2D, key.unit, key.microbatch, -1, {home, 0, bytes},
                {to, 0, bytes}, bytes);
}

void ActivationStream::bring_in_pieces(const ActivationKey& key, BufferId to) {
  const BufferId home = away_.at(key);
  const std::vector<ElemRange> ranges = pieces(builder_.buffer(to).bytes);
  std::vector<BufferId> staged(ranges.size());
  pipeline_pieces(
      ranges.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        staged[i] = add_place(key, Tier::kPinned, ranges[i]);
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

// Its elements are bytes.
BufferId ActivationStream::add_place(const ActivationKey& key, Tier tier, ElemRange bytes) {
  Buffer buffer;
  buffer.role = key.role;
  buffer.tier = tier;
  buffer.category = Category::kActivation;
  buffer.dtype = DType::kU8;
  buffer.unit = key.unit;
  buffer.microbatch = key.microbatch;
  buffer.first_elem = bytes.begin;
  buffer.elems = bytes.elems();
  buffer.bytes = bytes.elems();
  return builder_.add_transient(std::move(buffer));
}

Use ActivationStream::part(BufferId id, ElemRange bytes) const {
  return {id, bytes.begin - builder_.buffer(id).first_elem, bytes.elems()};
}

std::vector<ElemRange> ActivationStream::pieces(std::uint64_t bytes) const {
  const std::uint64_t most = builder_.options().piece_elems * kBytesPerPieceElem;
  std::vector<ElemRange> ranges;
  for (std::uint64_t begin = 0; begin < bytes; begin += most) {
    ranges.push_back({begin, std::min(begin + most, bytes)});
  }
  return ranges;
}

}  // namespace sluice
