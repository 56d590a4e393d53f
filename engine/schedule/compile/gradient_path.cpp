// The way of a gradient from the window that BackwardWeight wrote to the gradient's home.
//
// A home on the device is easy: the window is the home, or an addition on the compute lane adds the
// window to it. Otherwise the window is downloaded in pieces, and the optimizer lane adds each
// piece to the sum. The sum is the home in pinned memory, or pieces staged from storage: the
// earlier sum is read, the gradient added, and the result written back. Additions go in micro-batch
// order, as the arithmetic contract asks (host_gradient_path). After the last micro-batch the
// norm's partial sums of squares are taken of each piece, while it is in memory.
//
// Several ranks first exchange a round of gradients, one micro-batch of each rank, as computed.
// Each rank then holds N parts of its own shard and adds them in the order of micro-batches, each
// on the way above. So the sum of a shard has the bits that one rank would give it. The additions
// stand after later exchanges in the list (StepOptions::exchange_lag), since a lane that has to
// wait for an exchange computes nothing meanwhile. Homes that hold gradients rounded
// (StepBuilder::rounds_gradients) get them from sums on the device.
//
// With several groups of micro-batches each group has a sum. The first one lies in the home, others
// next to it (on the device, or in pinned memory) until they are added (group_sums). A rank among
// others sums its own groups on the device or a lower tier (partial_sums), exchanges one partial
// sum, and adds those of all ranks.
//
// In a tied model the head's use of the embedding has a sum of its own. It is added to the
// embedding's sum when both are complete, and the norm follows the addition. In a pipeline the two
// sums may lie on different ranks; the head's then travels to the embedding's (tied_stages).
#include "engine/schedule/compile/gradient_path.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "engine/schedule/compile/host_gradient_path.hpp"
#include "engine/schedule/compile/node_sum.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"
#include "engine/schedule/compile/tied_stages.hpp"

namespace sluice::schedule {
namespace {

// With one micro-batch in the whole step the gradient is its own sum and stays in 16 bits.
bool sums(const StepBuilder& builder) {
  return builder.options().microbatches > 1;
}

// The norm of a tied embedding follows its reduction.
bool folded_later(const StepBuilder& builder, std::int32_t unit) {
  return builder.model().tied_elems > 0 && (unit == 0 || unit == builder.tied_unit());
}

// The device computes the partials, and one copy brings them to pinned memory. Tensors may end
// inside of shards of one size, so their blocks are not equally many. The buffer has room for those
// of any rank, so that ranks with shards of one size need the same memory.
void emit_device_norm(StepBuilder& builder, std::int32_t unit, BufferId gradient, ElemRange range) {
  const Use home = builder.norm_partials_of(unit, range);
  std::uint64_t most_bytes = home.bytes;
  for (std::int32_t rank = 0; rank < builder.view().ranks; ++rank) {
    const ElemRange shard = builder.shard(unit, rank);
    most_bytes = std::max(most_bytes, builder.norm_partials_of(unit, shard).bytes);
  }
  const BufferId partials =
      builder.add_device(BufferRole::kNormPartial, Category::kGradient, most_bytes, unit, -1);
  Instruction& norm = builder.emit(Op::kGradNorm, Lane::kCompute, unit, -1);
  norm.reads.push_back(builder.part(gradient, range));
  norm.writes.push_back({partials, 0, home.bytes});
  builder.move(Op::kDownload, Lane::kD2H, unit, -1, -1, {partials, 0, home.bytes}, home,
               home.bytes);
}

// Adds the parts to a sum on the device. begins: the first part begins it.
void add_on_device(StepBuilder& builder, std::int32_t unit, ElemRange range,
                   const std::vector<GradientPart>& parts, BufferId sum, bool begins) {
  for (std::size_t k = 0; k < parts.size(); ++k) {
    emit_add_on_device(builder, unit, range, parts[k].buffer, parts[k].microbatch, sum,
                       begins && k == 0);
  }
}

// Whether the micro-batch is the first of its update.
bool is_first(const StepBuilder& builder, std::int32_t microbatch) {
  return microbatch % builder.options().microbatches == 0;
}
bool is_last(const StepBuilder& builder, std::int32_t microbatch) {
  return is_first(builder, microbatch + 1);
}

// A device home takes the sum in place; the window of a single micro-batch is the home itself.
void emit_device_path(StepBuilder& builder, std::int32_t unit,
                      const std::vector<GradientPart>& parts) {
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const ElemRange range = builder.home_range(StateKind::kGradient, unit);
  if (sums(builder)) {
    add_on_device(builder, unit, range, parts, home, is_first(builder, parts.front().microbatch));
    hold_parts(builder, parts);
  }
  if (is_last(builder, parts.back().microbatch) && !folded_later(builder, unit)) {
    emit_device_norm(builder, unit, home, range);
  }
}

// Adds the sum `from`, which lies next to the home, to the home. waiting: pieces of the home's
// content in pinned memory; empty if the content is at home.
void fold_into_home(StepBuilder& builder, std::int32_t unit, BufferId from,
                    const std::vector<BufferId>& waiting, bool last) {
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const std::vector<ElemRange> pieces =
      builder.pieces(builder.home_range(StateKind::kGradient, unit));
  const bool on_storage = builder.home_tier(StateKind::kGradient, unit) == Tier::kStorage;
  std::vector<BufferId> sum = waiting;
  if (waiting.empty()) sum.assign(pieces.size(), home);
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        if (!on_storage || !waiting.empty()) return;
        sum[i] = builder.add_piece(Ring::kGradients, StateKind::kGradient, unit, pieces[i],
                                   DType::kF32, builder.gradient_version());
        const Use use = builder.part(home, pieces[i]);
        builder.move(Op::kStorageRead, Lane::kStorageRead, unit, -1, static_cast<std::int32_t>(i),
                     use, builder.part(sum[i], pieces[i]), use.bytes);
      },
      [&](std::size_t i) {
        emit_fold(builder, Lane::kOptimizer, unit, builder.part(sum[i], pieces[i]),
                  builder.part(from, pieces[i]), static_cast<std::int32_t>(i));
        if (last && !folded_later(builder, unit)) {
          emit_host_norm(builder, unit, sum[i], pieces[i], static_cast<std::int32_t>(i));
        }
      },
      [&](std::size_t i) {
        if (!on_storage || (!waiting.empty() && !last)) return;
        const Use use = builder.part(home, pieces[i]);
        builder.move(Op::kStorageWrite, Lane::kStorageWrite, unit, -1, static_cast<std::int32_t>(i),
                     builder.part(sum[i], pieces[i]), use, use.bytes);
      });
}

}  // namespace

// Without sums and with a home on the device, kernels write the home directly. A worker of a server
// has no home.
BufferId gradient_target(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch) {
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const bool on_device = builder.home_tier(StateKind::kGradient, unit) == Tier::kDevice;
  if (on_device && home != kNoId && !sums(builder)) return home;
  return builder.add_window(StateKind::kGradient, unit, builder.unit_elems(unit),
                            builder.model().dtype, microbatch, builder.gradient_version());
}

// A rank that is alone waits for nothing.
void GradientPath::after_exchange(std::function<void()> rest) {
  exchanging_.push_back({std::move(rest)});
  const auto lag = static_cast<std::size_t>(builder_.options().exchange_lag);
  end_paths(builder_.view().is_alone() ? 0 : lag);
}

// What follows on a path waits for the exchanges that continue it.
void GradientPath::end_paths(std::size_t left) {
  while (exchanging_.size() > left) {
    std::vector<std::function<void()>> rest = std::move(exchanging_.front());
    exchanging_.pop_front();
    for (std::size_t i = 0; i < rest.size(); ++i) {
      continues_ = false;
      rest[i]();
      if (!continues_) continue;
      std::move(rest.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest.end(),
                std::back_inserter(exchanging_.back()));
      break;
    }
  }
}

// The path that ends just now goes on after another exchange, which has begun.
void GradientPath::continue_path(std::function<void()> rest) {
  exchanging_.push_back({std::move(rest)});
  continues_ = true;
}

void GradientPath::then(const std::function<void()>& next) {
  if (exchanging_.empty()) return next();
  exchanging_.back().push_back(next);
}

void GradientPath::finish() {
  end_paths(0);
  fold_tied();
}

void GradientPath::emit(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  if (builder_.options().fold_groups > 1) return emit_groups(unit, microbatch, window);
  if (builder_.view().is_asynchronous()) {
    return add_round(unit, microbatch, emit_arrival(builder_, unit, microbatch, window));
  }
  const std::int32_t first = microbatch - builder_.view().rank;
  std::vector<GradientPart> parts = emit_exchange(builder_, unit, window, first, 1);
  after_exchange([this, unit, first, parts = std::move(parts)] { add_round(unit, first, parts); });
}

// Adds the parts of one round to the sum of this rank's shard.
void GradientPath::add_round(std::int32_t unit, std::int32_t first,
                             const std::vector<GradientPart>& parts) {
  const bool ends = is_last(builder_, first + builder_.view().ranks - 1);
  if (builder_.rounds_gradients()) {
    sum_on_device(unit, parts);
    if (ends && !folded_later(builder_, unit)) finish_rounded(unit);
  } else if (parts.empty()) {
    // Other ranks own all of the unit.
  } else if (builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice) {
    emit_device_path(builder_, unit, parts);
  } else {
    const bool normed = ends && !folded_later(builder_, unit);
    HostGradientPath(builder_, unit, parts,
                     {sums(builder_), is_first(builder_, first), ends, normed}, waiting_[unit])
        .emit();
  }
}

// With one micro-batch for each rank it travels as it is.
void GradientPath::emit_groups(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  const RankView& view = builder_.view();
  if (view.is_alone()) return add_to_group(unit, microbatch, window);
  const std::int32_t own = builder_.own_microbatch_count();
  const bool last = microbatch == own * (view.rank + 1) - 1;
  if (own == 1 && builder_.options().sum == GradientSum::kRing) {
    // Sums that travel are fp32.
    const BufferId sum = builder_.add_sum(Tier::kDevice, unit);
    emit_add_on_device(builder_, unit, {0, builder_.unit_elems(unit)}, window, microbatch, sum,
                       true);
    fold_ranks(unit, sum);
  } else if (own == 1) {
    fold_ranks(unit, window);
  } else if (builder_.partial_tier(unit) == Tier::kDevice) {
    add_to_group(unit, microbatch, window);
    if (last) fold_ranks(unit, groups_[unit].top());
  } else if (last) {
    fold_ranks(unit, partials_.complete(unit, microbatch, window));
  } else {
    partials_.add(unit, microbatch, window);
  }
}

// Adds a micro-batch to its group's sum, and adds up what is complete with it.
void GradientPath::add_to_group(std::int32_t unit, std::int32_t microbatch, BufferId window) {
  const StepOptions& options = builder_.options();
  const bool alone = builder_.view().is_alone();
  const std::int32_t size = options.microbatches / options.fold_groups;
  const bool begins = microbatch % size == 0;
  const bool last = is_last(builder_, microbatch);
  const bool on_device = !alone || builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice;
  const ElemRange whole{0, builder_.unit_elems(unit)};
  GroupSums& groups = groups_[unit];
  if (begins) {
    const bool at_home = alone && groups.count() == 0;
    groups.push(at_home ? builder_.home(StateKind::kGradient, unit)
                        : builder_.add_sum(on_device ? Tier::kDevice : Tier::kPinned, unit));
  }
  const bool at_home = alone && groups.count() == 1;
  if (on_device) {
    add_on_device(builder_, unit, whole, {{microbatch, window}}, groups.top(), begins);
  } else if (at_home) {
    HostGradientPath(builder_, unit, {{microbatch, window}}, {true, begins, false, false},
                     waiting_[unit])
        .emit();
  } else {
    emit_add_on_host(builder_, unit, microbatch, window, groups.top(), begins);
  }
  if ((microbatch + 1) % size != 0) return;
  const bool waits = options.order == ComputeOrder::kUnit &&
                     builder_.home_tier(StateKind::kGradient, unit) == Tier::kStorage;
  groups.complete(alone && last, [&](BufferId into, BufferId from, std::size_t level, bool ends) {
    const bool normed = ends && !folded_later(builder_, unit);
    if (on_device) {
      emit_fold(builder_, Lane::kCompute, unit, builder_.part(into, whole),
                builder_.part(from, whole), -1);
      if (normed) emit_device_norm(builder_, unit, into, whole);
    } else if (level == 0) {
      fold_into_home(builder_, unit, from, waits ? waiting_[unit] : std::vector<BufferId>{}, ends);
    } else {
      emit_fold(builder_, Lane::kOptimizer, unit, builder_.part(into, whole),
                builder_.part(from, whole), -1);
    }
  });
}

// Exchanges the rank's sum of all its micro-batches: around the ring, within nodes first, or
// between all ranks.
void GradientPath::fold_ranks(std::int32_t unit, BufferId partial) {
  if (builder_.options().sum == GradientSum::kRing) {
    auto ring = std::make_shared<RingSum>(builder_, unit, partial);
    ring->emit_step();
    return after_exchange([this, unit, ring] { pass_on(unit, ring); });
  }
  if (builder_.sums_within_nodes()) {
    auto node = std::make_shared<NodeSum>(builder_, unit, partial);
    node->emit_within_node();
    return after_exchange([this, unit, node] {
      node->emit_node_additions();
      node->emit_across_nodes();
      continue_path([this, unit, node] { finish_ranks(unit, node->emit_additions()); });
    });
  }
  const std::int32_t own_count = builder_.own_microbatch_count();
  std::vector<GradientPart> parts =
      emit_exchange(builder_, unit, partial, own_count - 1, own_count);
  after_exchange([this, unit, parts = std::move(parts)] {
    finish_ranks(unit, emit_fold_of_parts(builder_, unit, builder_.own_shard(unit), parts));
  });
}

// Adds to the sums that came around the ring, and sends them on or ends with the rank's own shard.
void GradientPath::pass_on(std::int32_t unit, const std::shared_ptr<RingSum>& ring) {
  ring->emit_additions();
  if (!ring->is_done()) {
    ring->emit_step();
    return continue_path([this, unit, ring] { pass_on(unit, ring); });
  }
  finish_ranks(unit, ring->sum());
}

// The whole sum of this rank's shard is there.
void GradientPath::finish_ranks(std::int32_t unit, BufferId sum) {
  if (sum != kNoId) sums_[unit] = sum;
  if (!folded_later(builder_, unit)) finish_rounded(unit);
}

void GradientPath::sum_on_device(std::int32_t unit, const std::vector<GradientPart>& parts) {
  if (parts.empty()) return;
  const ElemRange own = builder_.own_shard(unit);
  BufferId& sum = sums_[unit];
  const bool fresh = is_first(builder_, parts.front().microbatch);
  if (fresh) {
    sum = builder_.add_received(StateKind::kGradient, unit, own, DType::kF32, -1,
                                builder_.gradient_version());
  }
  // A bucket is added while the next one travels.
  for (const ElemRange slice : bucket_slices(builder_, unit, builder_.view().rank)) {
    if (slice.elems() > 0) add_on_device(builder_, unit, slice, parts, sum, fresh);
  }
  hold_parts(builder_, parts);
}

// Rounds the sum of the rank's shard. Without shards of the optimizer's state every rank applies
// the whole gradient, so each gathers the shards of the others; the norm is still taken once.
void GradientPath::finish_rounded(std::int32_t unit) {
  const ElemRange own = builder_.own_shard(unit);
  const BufferId home = builder_.home(StateKind::kGradient, unit);
  const bool on_device = builder_.home_tier(StateKind::kGradient, unit) == Tier::kDevice;
  if (own.elems() > 0) {
    const BufferId rounded =
        on_device ? home
                  : builder_.add_received(StateKind::kGradient, unit, own, builder_.model().dtype,
                                          -1, builder_.gradient_version());
    Instruction& round = builder_.emit(Op::kRoundGrad, Lane::kCompute, unit, -1);
    round.reads.push_back(builder_.part(sums_.at(unit), own));
    round.writes.push_back(builder_.part(rounded, own));
    if (on_device) {
      emit_device_norm(builder_, unit, home, own);
    } else {
      const std::int32_t last = (builder_.update() + 1) * builder_.options().microbatches - 1;
      HostGradientPath(builder_, unit, {{last, rounded}}, {false, true, true, true}, waiting_[unit])
          .emit();
    }
  }
  if (builder_.view().shards_optimizer()) return;
  SLUICE_CHECK(on_device);
  emit_gather(builder_, unit, home, home);
}

namespace {

// The staged copy of a piece of a sum on storage.
BufferId read_sum(StepBuilder& builder, BufferId from, std::int32_t unit, ElemRange range,
                  std::int32_t piece) {
  const BufferId staged = builder.add_piece(Ring::kTiedFold, StateKind::kGradient, unit, range,
                                            builder.buffer(from).dtype, builder.gradient_version());
  const Use use = builder.part(from, range);
  builder.move(Op::kStorageRead, Lane::kStorageRead, unit, -1, piece, use,
               builder.part(staged, range), use.bytes);
  return staged;
}

// Sends the tied sum from its home in pinned memory or on storage, in the pieces that the rank of
// the embedding adds.
void send_from_host(StepBuilder& builder, ElemRange shared) {
  const std::int32_t unit = builder.tied_unit();
  const BufferId home = builder.home(StateKind::kGradient, unit);
  const bool on_storage = builder.home_tier(StateKind::kGradient, unit) == Tier::kStorage;
  const std::vector<ElemRange> pieces = builder.pieces(shared);
  std::vector<BufferId> staged(pieces.size(), home);
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        if (!on_storage) return;
        staged[i] = read_sum(builder, home, unit, pieces[i], static_cast<std::int32_t>(i));
      },
      [&](std::size_t i) { emit_tied_sum(builder, staged[i], pieces[i]); }, [](std::size_t) {});
}

// Adds in pinned memory. A home on storage is staged piece by piece.
void fold_on_host(StepBuilder& builder, ElemRange shared, ElemRange rest) {
  const BufferId home = builder.home(StateKind::kGradient, 0);
  const BufferId tied = builder.home(StateKind::kGradient, builder.tied_unit());
  // Pieces of the shared tensor, then pieces of the rest, so that a reduction never reads past it.
  std::vector<ElemRange> pieces = builder.pieces(shared);
  const std::size_t folded = pieces.size();
  for (const ElemRange range : builder.pieces(rest)) pieces.push_back(range);
  std::vector<BufferId> sums_of(pieces.size(), home);
  std::vector<BufferId> tied_of(pieces.size(), tied);
  const bool on_storage = builder.home_tier(StateKind::kGradient, 0) == Tier::kStorage;
  const bool arrives = builder.ties_ranks();
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder.options().stream_lookahead),
      [&](std::size_t i) {
        const auto piece = static_cast<std::int32_t>(i);
        if (on_storage) sums_of[i] = read_sum(builder, home, 0, pieces[i], piece);
        if (i >= folded) return;
        if (arrives) {
          tied_of[i] =
              builder.add_piece(Ring::kTiedFold, StateKind::kGradient, builder.tied_unit(),
                                pieces[i], builder.buffer(home).dtype, builder.gradient_version());
          emit_tied_sum(builder, tied_of[i], pieces[i]);
        } else if (on_storage) {
          tied_of[i] = read_sum(builder, tied, builder.tied_unit(), pieces[i], piece);
        }
      },
      [&](std::size_t i) {
        const auto piece = static_cast<std::int32_t>(i);
        if (i < folded) {
          emit_fold(builder, Lane::kOptimizer, 0, builder.part(sums_of[i], pieces[i]),
                    builder.part(tied_of[i], pieces[i]), piece);
        }
        emit_host_norm(builder, 0, sums_of[i], pieces[i], piece);
      },
      [&](std::size_t i) {
        if (!on_storage || i >= folded) return;
        const Use use = builder.part(home, pieces[i]);
        builder.move(Op::kStorageWrite, Lane::kStorageWrite, 0, -1, static_cast<std::int32_t>(i),
                     builder.part(sums_of[i], pieces[i]), use, use.bytes);
      });
}

}  // namespace

// The head's rank, where it is not that of the embedding.
void GradientPath::send_tied() {
  const std::int32_t tied_unit = builder_.tied_unit();
  const ElemRange shared = builder_.own_shard(tied_unit);
  if (shared.elems() == 0) return;
  if (builder_.rounds_gradients()) {
    emit_tied_sum(builder_, sums_.at(tied_unit), shared);
  } else if (builder_.home_tier(StateKind::kGradient, tied_unit) == Tier::kDevice) {
    emit_tied_sum(builder_, builder_.home(StateKind::kGradient, tied_unit), shared);
  } else {
    send_from_host(builder_, shared);
  }
}

// The sum of the tied use on the device: this rank's, or the one that arrives now.
BufferId GradientPath::tied_sum_on_device(ElemRange shared) {
  const std::int32_t tied_unit = builder_.tied_unit();
  const bool rounds = builder_.rounds_gradients();
  if (!builder_.ties_ranks()) {
    return rounds ? sums_.at(tied_unit) : builder_.home(StateKind::kGradient, tied_unit);
  }
  const BufferId own = rounds ? sums_.at(0) : builder_.home(StateKind::kGradient, 0);
  const BufferId sum =
      builder_.add_received(StateKind::kGradient, tied_unit, shared, builder_.buffer(own).dtype, -1,
                            builder_.gradient_version());
  emit_tied_sum(builder_, sum, shared);
  return sum;
}

void GradientPath::fold_tied() {
  if (!builder_.has_tied_unit()) return;
  if (!builder_.owns(0)) {
    if (builder_.owns_head()) send_tied();
    return;
  }
  const ElemRange shared = builder_.own_shard(builder_.tied_unit());
  const ElemRange own = builder_.own_shard(0);
  if (builder_.rounds_gradients()) {
    if (shared.elems() > 0) {
      const BufferId tied = tied_sum_on_device(shared);
      emit_fold(builder_, Lane::kCompute, 0, builder_.part(sums_.at(0), shared),
                builder_.part(tied, shared), -1);
    }
    finish_rounded(0);
  } else if (own.elems() == 0) {
    // Other ranks own all of the unit.
  } else if (builder_.home_tier(StateKind::kGradient, 0) == Tier::kDevice) {
    const BufferId home = builder_.home(StateKind::kGradient, 0);
    if (shared.elems() > 0) {
      const BufferId tied = tied_sum_on_device(shared);
      emit_fold(builder_, Lane::kCompute, 0, builder_.part(home, shared),
                builder_.part(tied, shared), -1);
    }
    emit_device_norm(builder_, 0, home, own);
  } else {
    fold_on_host(builder_, shared, {std::max(own.begin, builder_.model().tied_elems), own.end});
  }
}

}  // namespace sluice::schedule
